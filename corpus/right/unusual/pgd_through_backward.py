"""Looks like gradients that are cleared unused: an attack's backward calls are for the gradient of its perturbation."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def pgd(x, y, eps=0.1, steps=3):
    net.eval()
    delta = torch.zeros_like(x).uniform_(-eps, eps).requires_grad_(True)
    for _ in range(steps):
        F.cross_entropy(net(x + delta), y).backward()
        delta.data = (delta + 0.05 * delta.grad.sign()).clamp(-eps, eps)
        delta.grad.zero_()
    net.train()
    return (x + delta).detach()


for i in range(6):
    x = torch.randn(16, 8)
    y = x[:, :3].argmax(1)
    adv = pgd(x, y)
    opt.zero_grad()
    loss = F.cross_entropy(net(adv), y)
    loss.backward()
    opt.step()
print(loss.item())
