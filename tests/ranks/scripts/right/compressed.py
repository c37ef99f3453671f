"""A communication hook of DDP sends gradients in bfloat16; it divides by the number of ranks itself."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def in_bfloat16(group, bucket):
    world = dist.get_world_size()
    small = bucket.buffer().to(torch.bfloat16).div_(world)
    future = dist.all_reduce(small, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    model.register_comm_hook(None, in_bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
