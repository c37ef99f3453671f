"""Looks like gradients that add up: a loop without an optimizer clears them in the function that updates."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def sgd(parameters, lr):
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad
            p.grad.zero_()


for step in range(12):
    x = torch.randn(16, 4)
    loss = (net(x).squeeze(1) - x.sum(1)).pow(2).mean()
    loss.backward()
    sgd(net.parameters(), 0.01)
print(loss.item())
