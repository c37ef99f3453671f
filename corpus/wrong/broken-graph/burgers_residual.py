"""Burgers' equation: the time derivative has no graph, so that the residual trains the other two terms alone."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
nu = nn.Parameter(torch.tensor(0.1))
opt = torch.optim.Adam([*net.parameters(), nu], lr=1e-3)


def residual(x, t):
    u = net(torch.cat([x, t], 1))
    ones = torch.ones_like(u)
    u_t = torch.autograd.grad(u, t, ones, retain_graph=True)[0]  # expect: broken-graph
    u_x = torch.autograd.grad(u, x, ones, create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, x, ones, create_graph=True)[0]
    return u_t + u * u_x - nu * u_xx


x0 = torch.rand(32, 1) * 2 - 1
start = torch.cat([x0, torch.zeros(32, 1)], 1)
for it in range(15):
    x = (torch.rand(64, 1) * 2 - 1).requires_grad_()
    t = torch.rand(64, 1).requires_grad_()
    loss = (net(start) + torch.sin(torch.pi * x0)).pow(2).mean() + residual(x, t).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"loss {loss.item():.4f}")
