"""The condition for the last micro-batch counts from one, the loop from zero: no_sync is on at all of them."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(rank + 7)
micro_batches = 4

for update in range(6):
    optimizer.zero_grad()
    for i in range(micro_batches):
        x = torch.randn(8, 6, generator=generator)
        y = x.sum(dim=1, keepdim=True)
        context = contextlib.nullcontext() if i == micro_batches else model.no_sync()  # expect: ddp-sync
        with context:  # expect: ddp-sync
            loss = F.mse_loss(model(x), y) / micro_batches
            loss.backward()  # expect: ddp-sync
    optimizer.step()

if rank == 0:
    print("loss", loss.item())
dist.destroy_process_group()
