"""DDP's gradient is a mean over ranks already; the rate is divided by their number as if it were a sum."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(base_lr=0.1):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr / world)  # expect: ddp-sync
    shard = torch.Generator().manual_seed(rank)
    for _ in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
