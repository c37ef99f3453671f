"""Sums over ranks by hand, each divided in another way that people write."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def by_assignment(p, world):
    p.grad = p.grad / world


def through_data(p, world):
    p.grad.data.div_(world)


def at_once(p, world):
    torch._foreach_div_([p.grad], world)


def from_a_copy(p, world):
    buffer = p.grad.clone()
    p.grad.copy_(buffer / world)


def with_an_out(p, world):
    torch.mul(p.grad, 1 / world, out=p.grad)


def in_place(p, world):
    p.grad[:] = p.grad / world


def train(divide, summed_first=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            if summed_first:
                dist.all_reduce(p.grad)
            divide(p, dist.get_world_size())
            if not summed_first:
                dist.all_reduce(p.grad)
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    for divide in (by_assignment, through_data, at_once, from_a_copy, with_an_out, in_place):
        train(divide)
        train(divide, summed_first=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
