"""The loss and the hits are added up over ranks for the log, outside of any graph."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def reduced(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world)
    shard = torch.Generator().manual_seed(rank)
    hits = torch.zeros(1)
    for step in range(10):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        hits += (logits.argmax(dim=1) == y).sum()
        mean = reduced(loss)
        if rank == 0 and step % 5 == 0:
            print(f"{step} loss {mean.item():.4f} norm {norm.item():.3f}")
    dist.all_reduce(hits)
    if rank == 0:
        print("accuracy", hits.item() / (10 * 16 * world))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
