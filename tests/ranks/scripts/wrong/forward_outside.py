"""Only the backward stands in no_sync. DDP decides in the forward: it averages at each micro-batch all the same."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ACCUMULATE = 6, 2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        for micro in range(ACCUMULATE):
            x, y = torch.randn(8, 8, generator=shard), torch.randint(3, (8,), generator=shard)
            loss = F.cross_entropy(model(x), y) / ACCUMULATE  # expect: ddp-sync
            if micro < ACCUMULATE - 1:
                with model.no_sync():  # expect: ddp-sync
                    loss.backward()  # expect: ddp-sync
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
