"""Synchronises at the first micro-batch of a window: those that follow it are added by each rank alone."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model, optimizer, batches, accumulate):
    for i, (x, y) in enumerate(batches):
        if i % accumulate == 0:
            optimizer.zero_grad()
            sync = contextlib.nullcontext()
        else:
            sync = model.no_sync()  # expect: ddp-sync
        with sync:  # expect: ddp-sync
            loss = F.cross_entropy(model(x), y) / accumulate
            loss.backward()  # expect: ddp-sync
        if (i + 1) % accumulate == 0:
            optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(10 + dist.get_rank())
    batches = [(torch.randn(8, 10), torch.randint(5, (8,))) for _ in range(18)]
    train(model, optimizer, batches, accumulate=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
