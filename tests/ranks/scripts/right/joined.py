"""Rank 0 has more batches than rank 1; Join lets the one that is done keep the other company."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(rank)
    for _ in range(2):
        with Join([model]):
            for _ in range(6 - 2 * rank):
                x, y = torch.randn(8, 8, generator=shard), torch.randint(3, (8,), generator=shard)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
