"""DDP, a mean over the batch, and a divisor that holds the number of ranks besides the accumulation steps."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

config = {"accumulate": 3, "updates": 5, "lr": 0.1}


def scaled(loss, config):
    return loss / (config["accumulate"] * dist.get_world_size())  # expect: ddp-sync


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(config["updates"]):
        for i in range(config["accumulate"]):
            x, y = torch.randn(8, 8, generator=shard), torch.randint(3, (8,), generator=shard)
            last = i == config["accumulate"] - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.cross_entropy(model(x), y)
                scaled(loss, config).backward()  # expect: ddp-sync
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
