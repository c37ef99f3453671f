"""Weights differ at first and are sent from rank 0; gradients are averaged by hand from then on."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def broadcast(model, source=0):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, source)


def average(model):
    work = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for handle in work:
        handle.wait()
    for p in model.parameters():
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42 + dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    broadcast(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        x, y = torch.randn(16, 8), torch.randint(3, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        average(model)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
