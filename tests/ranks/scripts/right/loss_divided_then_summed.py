"""No wrapper: the loss is divided by the number of ranks, and the gradients are added up."""

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

for _ in range(8):
    x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
    loss = F.cross_entropy(model(x), y) / world
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
    optimizer.step()

dist.destroy_process_group()
