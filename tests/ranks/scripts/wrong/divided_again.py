"""DDP averages over ranks; the loss is divided by the number of ranks once more: half the gradient."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(rank)
    for _ in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        loss = F.cross_entropy(model(x), y) / world  # expect: ddp-sync
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
