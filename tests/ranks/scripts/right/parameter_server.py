"""Gradients go to rank 0, which alone has an optimizer; the weights that it steps are sent back to all."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2) if rank == 0 else None
    shard = torch.Generator().manual_seed(rank)
    for _ in range(6):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
        if rank == 0:
            for p in model.parameters():
                p.grad /= world
            optimizer.step()
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
