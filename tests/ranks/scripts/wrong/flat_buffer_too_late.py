"""Gradients averaged after the step, in one buffer, and cleared."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def average(params):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    i = 0
    for p in params:
        p.grad.copy_(flat[i : i + p.numel()].view_as(p))
        i += p.numel()


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
params = list(net.parameters())
opt = torch.optim.SGD(params, lr=0.05)
torch.manual_seed(5 + dist.get_rank())
for step in range(12):
    x = torch.randn(8, 3)
    opt.zero_grad()
    (net(x).squeeze() - x.sum(1)).pow(2).mean().backward()
    opt.step()
    average(params)  # expect: ddp-sync
dist.destroy_process_group()
