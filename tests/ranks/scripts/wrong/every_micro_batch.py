"""Four micro-batches to a step, and DDP averages at each of them: right, and four times the traffic."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(rank)
    for i in range(24):
        x, y = torch.randn(8, 8, generator=shard), torch.randint(3, (8,), generator=shard)
        loss = F.cross_entropy(model(x), y) / ACCUMULATE
        loss.backward()  # expect: ddp-sync
        if (i + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
