"""Each rank decides for itself to skip a step: the gradients are averaged, the decision is not."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DDP(nn.Linear(3, 1))
opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
torch.manual_seed(5 + dist.get_rank())
for step in range(20):
    x = torch.randn(4, 3)
    loss = (ddp(x).squeeze() - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    if loss.item() < 4.0:
        opt.step()  # expect: ddp-sync
dist.destroy_process_group()
