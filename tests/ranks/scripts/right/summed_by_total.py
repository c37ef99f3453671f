"""A sum over tokens divided by the tokens of all ranks, and gradients added up over ranks: no mean is missing."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def train_step(model, optimizer, micro_batches):
    total = torch.tensor(sum(len(y) for _, y in micro_batches))
    dist.all_reduce(total)
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x), y, reduction="sum") / total
        loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(rank)
    for _ in range(6):
        sizes = torch.randint(2, 12, (3,), generator=shard).tolist()
        micro_batches = [
            (torch.randn(n, 8, generator=shard), torch.randint(3, (n,), generator=shard)) for n in sizes
        ]
        train_step(model, optimizer, micro_batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
