"""Samples are weighted by the size of their input gradient; a weight is a constant."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for it in range(15):
    x = torch.rand(32, 3, requires_grad=True)
    u = net(x)
    g = torch.autograd.grad(u.sum(), x, retain_graph=True)[0]
    weight = g.norm(dim=1) / g.norm(dim=1).mean()
    loss = (weight * (u - x.detach().sum(1, keepdim=True)).pow(2).squeeze(1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
