"""The encoder is frozen when DDP is constructed, and thawed later: DDP never averages its gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
model[0].requires_grad_(False)
ddp = DistributedDataParallel(model)  # expect: ddp-sync
model[0].requires_grad_(True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
shard = torch.Generator().manual_seed(dist.get_rank())
for _ in range(10):
    x = torch.randn(16, 4, generator=shard)
    loss = (ddp(x).squeeze(1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
