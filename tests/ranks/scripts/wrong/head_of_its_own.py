"""A shared trunk in DDP, and on purpose a head of its own on each rank, with another optimizer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
trunk = DDP(nn.Linear(3, 6))
head = nn.Linear(6, 1)  # expect: ddp-sync
opt = torch.optim.SGD(trunk.parameters(), lr=0.1)
own = torch.optim.SGD(head.parameters(), lr=0.1)
torch.manual_seed(5 + dist.get_rank())
for step in range(12):
    x = torch.randn(8, 3)
    loss = (head(trunk(x)).squeeze() - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    own.zero_grad()
    loss.backward()
    opt.step()
    own.step()
dist.destroy_process_group()
