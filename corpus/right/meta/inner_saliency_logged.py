"""Input gradients are logged, not trained."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
log = []
for it in range(15):
    x = torch.rand(32, 3, requires_grad=True)
    u = net(x)
    g = torch.autograd.grad(u.sum(), x, retain_graph=True)[0]
    log.append(g.norm().item())
    loss = (u - x.detach().sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
