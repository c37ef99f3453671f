"""A hook of each parameter averages its gradient over ranks as soon as backward has made it."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def average(parameter):
    parameter.grad /= dist.get_world_size()
    dist.all_reduce(parameter.grad)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
