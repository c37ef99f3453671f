"""The wrapper is made once so that all ranks begin with rank 0's weights; the gradients are averaged by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))).module
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
dist.destroy_process_group()
