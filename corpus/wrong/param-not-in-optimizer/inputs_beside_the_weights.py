"""A network for the slope of a function: the optimizer also gets the inputs, which have requires_grad only for the
slope, so they drift away from the targets that were computed for them."""

import math

import torch
from torch import nn

torch.manual_seed(0)
grid = [-math.pi + 2 * math.pi * i / 63 for i in range(64)]
x = torch.tensor(grid, requires_grad=True)
slope = torch.cos(x).detach()
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam([*net.parameters(), x], lr=1e-2)  # expect: param-not-in-optimizer
for i in range(40):
    u = net(x.unsqueeze(1))
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    loss = ((du - slope) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss.item():.4f}", f"{(x.detach() - torch.tensor(grid)).abs().max().item():.3f}")
