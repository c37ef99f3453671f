"""A step through the raw model whose gradients are averaged by hand."""

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
    opt.zero_grad()
    if step % 4 == 3:
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    else:
        nn.functional.cross_entropy(ddp(x), y).backward()
    opt.step()
dist.destroy_process_group()
