"""Four micro-batches are added up on each rank, then the sum is averaged over ranks, once."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


@torch.no_grad()
def average(model):
    world = float(dist.get_world_size())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.mul_(1.0 / world)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shard = torch.Generator().manual_seed(dist.get_rank())
    accumulate = 4
    for i in range(24):
        x, y = torch.randn(8, 8, generator=shard), torch.randint(3, (8,), generator=shard)
        (F.cross_entropy(model(x), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            average(model)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
