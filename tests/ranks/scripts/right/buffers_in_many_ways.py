"""Flat buffers of gradients that are summed over ranks: each is scaled, or needs no division."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector


def write(parameters, flat):
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))


def gathered(parameters):
    return parameters_to_vector([p.grad for p in parameters])


def mean(parameters):
    n = dist.get_world_size()
    flat = gathered(parameters)
    dist.all_reduce(flat)
    flat.div_(n)
    write(parameters, flat)


def majority(parameters):
    flat = torch.cat([p.grad.sign().flatten() for p in parameters])
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.sign().view_as(p))


def total(parameters):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))


def train(sync, loss_of, lr):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        sync(list(model.parameters()))
        optimizer.step()


def over_all_items(logits, y):
    count = torch.tensor(float(len(y)))
    dist.all_reduce(count)
    return F.cross_entropy(logits, y, reduction="sum") / count


def main():
    dist.init_process_group("gloo")
    train(mean, F.cross_entropy, 0.1)
    train(majority, F.cross_entropy, 0.01)
    train(total, over_all_items, 0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
