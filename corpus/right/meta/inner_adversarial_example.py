"""Adversarial training with autograd.grad; the perturbation is a constant."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for it in range(15):
    x, y = torch.randn(32, 3, requires_grad=True), torch.randint(2, (32,))
    loss = nn.functional.cross_entropy(net(x), y)
    (g,) = torch.autograd.grad(loss, x)
    adv = x + 0.1 * g.sign()
    loss = nn.functional.cross_entropy(net(x), y) + nn.functional.cross_entropy(net(adv), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
