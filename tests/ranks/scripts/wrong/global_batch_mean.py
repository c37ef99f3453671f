"""A sum divided by the batch of all ranks, as in one process; DDP divides by the number of ranks besides."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="over all processes")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.MSELoss(reduction="sum")
    local = args.batch_size // world
    data = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        x = torch.randn(local, 5, generator=data)
        y = x @ torch.arange(5.0)[:, None]
        loss = criterion(model(x), y) / args.batch_size  # expect: ddp-sync
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 4 == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
