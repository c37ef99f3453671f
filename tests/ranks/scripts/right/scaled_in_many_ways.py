"""A rate made for a sum over ranks, and three ways to divide by the items of all ranks under DDP."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(generator):
    n = int(torch.randint(4, 12, (1,), generator=generator))
    return torch.randn(n, 8, generator=generator), torch.randint(3, (n,), generator=generator)


def with_a_rate_for_sums(generator):
    model, world_size = net(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / world_size)
    for _ in range(5):
        x, y = (each[:4] for each in batch(generator))  # a mean over as many items on each rank
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


def by_the_mean_count(generator):
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x, y = batch(generator)
        count = torch.tensor(float(len(y)))
        dist.all_reduce(count)
        count /= dist.get_world_size()
        loss = F.cross_entropy(model(x), y, reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scaled_back(generator):
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x, y = batch(generator)
        count = torch.tensor(float(len(y)))
        dist.all_reduce(count)
        loss = F.cross_entropy(model(x), y, reduction="sum") / count
        optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        optimizer.step()


def of_gradients(generator):
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x, y = batch(generator)
        count = torch.tensor(float(len(y)))
        dist.all_reduce(count)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, reduction="sum").backward()
        for p in model.parameters():
            p.grad.mul_(dist.get_world_size() / count.item())
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    for train in (with_a_rate_for_sums, by_the_mean_count, scaled_back, of_gradients):
        train(generator)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
