"""The running sum is averaged over ranks after each micro-batch: what came first is exchanged again and again."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shard = torch.Generator().manual_seed(rank)
accumulate = 4

for i in range(24):
    x, y = torch.randn(8, 8, generator=shard), torch.randint(3, (8,), generator=shard)
    loss = F.cross_entropy(model(x), y) / (accumulate * world)
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)  # expect: ddp-sync
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
