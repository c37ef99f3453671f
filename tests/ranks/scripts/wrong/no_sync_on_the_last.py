"""no_sync covers the last micro-batch instead of the others."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from contextlib import nullcontext

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
ddp = DDP(nn.Linear(4, 2))
opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
ACC = 4
for step in range(24):
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    last = step % ACC == ACC - 1
    with ddp.no_sync() if last else nullcontext():
        loss = nn.functional.cross_entropy(ddp(x), y) / ACC
        loss.backward()  # expect: ddp-sync
    if last:
        opt.step()
        opt.zero_grad()
dist.destroy_process_group()
