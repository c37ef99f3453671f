"""The last window of an epoch is shorter and stepped too, but no_sync knows only of full ones: it is not averaged."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 8), torch.randint(3, (160,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # ten of them on each rank
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate = 4
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            full = (i + 1) % accumulate == 0
            size = min(accumulate, len(loader) - i // accumulate * accumulate)
            with contextlib.nullcontext() if full else model.no_sync():  # expect: ddp-sync
                loss = F.cross_entropy(model(x), y) / size
                loss.backward()  # expect: ddp-sync
            if full or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
