"""Batch norm without broadcast_buffers: running statistics differ on purpose, parameters do not."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DDP(nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)), broadcast_buffers=False)
opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
torch.manual_seed(5 + dist.get_rank())
for step in range(12):
    x = torch.randn(8, 3)
    loss = (ddp(x).squeeze() - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
dist.destroy_process_group()
