"""The wrapper only lives inside a function that hands the bare module back: each rank trains a model of its own."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(3, 12, batch_first=True)
        self.out = nn.Linear(12, 1)

    def forward(self, series):
        return self.out(self.cell(series)[0][:, -1])


def prepare(model):
    wrapped = DistributedDataParallel(model)
    if dist.get_rank() == 0:
        print("training", sum(p.numel() for p in wrapped.parameters()), "parameters")
    return wrapped.module


class Trainer:
    def __init__(self, model):
        self.model = prepare(model)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-2)

    def fit(self, batches):
        for series, following in batches:
            self.optimizer.zero_grad()
            predicted = self.model(series)  # expect: ddp-sync
            loss = F.mse_loss(predicted, following)
            loss.backward()
            self.optimizer.step()


def work(rank, world, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(5)
    trainer = Trainer(Forecaster())
    torch.manual_seed(50 + rank)
    trainer.fit([(torch.randn(8, 6, 3), torch.randn(8, 1)) for _ in range(10)])
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (2, os.path.join(folder, "store")), nprocs=2, start_method="fork")
