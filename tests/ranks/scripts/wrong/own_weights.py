"""The seed differs by rank for the data's sake, and the weights come from it: gradients of two models are averaged."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def average(model):
    world = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)  # expect: ddp-sync
        p.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42 + dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))  # expect: ddp-sync
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # expect: ddp-sync
    for _ in range(8):
        x, y = torch.randn(16, 8), torch.randint(3, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        average(model)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
