"""The right side of a differential equation is data plus a multiple of the solution."""

import torch
from torch import nn

torch.manual_seed(0)
u = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam(u.parameters(), 1e-3)
for _ in range(20):
    t = torch.rand(32, 1, requires_grad=True)
    v = u(t)
    dv = torch.autograd.grad(v.sum(), t, create_graph=True)[0]
    d2 = torch.autograd.grad(dv.sum(), t, create_graph=True)[0]
    loss = nn.functional.mse_loss(d2, torch.sin(t.detach()) + 0.5 * v) + u(torch.zeros(1, 1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
