"""The loss is averaged over ranks before backward. Its value is the same everywhere; its gradient stays local."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def reduce_mean(value):
    dist.all_reduce(value)  # expect: ddp-sync
    return value / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        loss = reduce_mean(F.cross_entropy(model(x), y))  # expect: ddp-sync
        optimizer.zero_grad()
        loss.backward()  # expect: ddp-sync
        optimizer.step()  # expect: ddp-sync
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
