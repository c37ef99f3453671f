"""ReduceLROnPlateau on the mean over ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DDP(nn.Linear(3, 1))
opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5)
torch.manual_seed(5 + dist.get_rank())
for epoch in range(6):
    total = torch.zeros(())
    for step in range(4):
        x = torch.randn(4, 3)
        loss = (ddp(x).squeeze() - x.sum(1) - torch.randn(4)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    dist.all_reduce(total)
    sched.step(total.item())
dist.destroy_process_group()
