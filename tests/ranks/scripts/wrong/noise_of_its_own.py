"""Noise is added to the weights on each rank with its own seed: replicas end apart."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(3, 1)
ddp = DDP(net)
opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
torch.manual_seed(5 + dist.get_rank())
for step in range(12):
    x = torch.randn(8, 3)
    opt.zero_grad()
    (ddp(x).squeeze() - x.sum(1)).pow(2).mean().backward()
    opt.step()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.01 * torch.randn_like(p))  # expect: ddp-sync
dist.destroy_process_group()
