"""Gradients are measured, nothing is trained: saliency over a data set."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
fisher = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
for i in range(20):
    net.zero_grad()
    x = torch.randn(1, 3)
    net(x).pow(2).sum().backward()
    for n, p in net.named_parameters():
        fisher[n] = fisher[n] + p.grad.pow(2) / 20
