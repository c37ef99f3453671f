"""gradgate's accumulator over DDP, with windows of unequal micro-batches that differ by rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=model, clip_norm=1.0)
    shard = torch.Generator().manual_seed(rank)
    for _ in range(5):
        sizes = [8, 3, 5] if rank == 0 else [2, 8]
        window = [
            (torch.randn(n, 8, generator=shard), torch.randint(3, (n,), generator=shard)) for n in sizes
        ]
        with accumulator.update() as update:
            for x, y in update.micro_batches(window):
                update.backward(F.cross_entropy(model(x), y), count=len(y))
    if rank == 0:
        print(update.loss, update.count)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
