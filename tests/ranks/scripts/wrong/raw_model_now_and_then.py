"""Every 4th step goes through the raw model: its gradients are not averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
ddp = DDP(model)
opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
for step in range(16):
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    if step % 4 == 3:
        out = model(x + 0.1 * torch.randn_like(x))  # expect: ddp-sync
    else:
        out = ddp(x)
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
dist.destroy_process_group()
