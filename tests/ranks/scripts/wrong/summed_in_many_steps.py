"""Gradients are added up over ranks by a helper that should average them, in more steps than are read closely."""

import os

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for param in model.parameters():
        dist.all_reduce(param.grad.data)  # expect: ddp-sync


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    y = x[:, :2].prod(1, keepdim=True)
    x, y = x[rank::world], y[rank::world]
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for epoch in range(10):
        for start in range(0, len(x), 20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[start : start + 20]), y[start : start + 20])
            loss.backward()
            average_gradients(model)
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
