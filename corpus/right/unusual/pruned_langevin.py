"""Looks like in-place changes and gradients of zero: a mask holds pruned weights at zero through gradient
hooks, and Langevin noise is added to the others after each step."""

import torch
from torch import nn

torch.manual_seed(0)
LR, TEMPERATURE = 0.05, 1e-4
x = torch.randn(90, 6)
y = torch.sin(x[:, :1]) + x[:, 1:2]
net = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 1))

masks = {}
for layer in net:
    if isinstance(layer, nn.Linear):
        threshold = layer.weight.detach().abs().median()
        masks[layer.weight] = mask = (layer.weight.detach().abs() > threshold).float()
        layer.weight.data.mul_(mask)
        layer.weight.register_hook(lambda grad, mask=mask: grad * mask)

optimizer = torch.optim.SGD(net.parameters(), lr=LR)
for epoch in range(3):
    for rows in torch.randperm(90).split(18):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p in net.parameters():
                noise = (2 * LR * TEMPERATURE) ** 0.5 * torch.randn_like(p)
                p.add_(noise * masks.get(p, 1.0))
    zeros = sum((w == 0).sum().item() for w in masks)
    print(f"epoch {epoch} loss {loss.item():.4f} zeros {zeros}")
