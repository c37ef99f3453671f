"""The encoder is wrapped, the projection that is trained with it is not: each rank trains its own projection."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU()))
    projection = nn.Linear(32, 4)  # expect: ddp-sync
    optimizer = torch.optim.Adam([*encoder.parameters(), *projection.parameters()], lr=1e-3)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(10):
        x, y = torch.randn(16, 10, generator=shard), torch.randint(4, (16,), generator=shard)
        loss = F.cross_entropy(projection(encoder(x)), y)
        optimizer.zero_grad()
        loss.backward()  # expect: ddp-sync
        optimizer.step()  # expect: ddp-sync
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
