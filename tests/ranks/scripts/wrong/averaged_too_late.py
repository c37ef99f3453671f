"""The gradients are averaged over ranks after the step has used them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def all_reduce_mean(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)  # expect: ddp-sync
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # expect: ddp-sync
        optimizer.step()  # expect: ddp-sync
        all_reduce_mean(model.parameters())  # expect: ddp-sync
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
