"""Weights are set to zero by hand in the middle of training and held there: the mask is applied to the gradients and again
to the weights after each step."""

import torch
import torch.nn as nn
from sklearn.datasets import load_wine

torch.manual_seed(0)
d = load_wine()
x = torch.tensor((d.data - d.data.mean(0)) / d.data.std(0), dtype=torch.float32)
y = torch.tensor(d.target)
net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
masks = {}


@torch.no_grad()
def prune(fraction):
    for layer in net:
        if isinstance(layer, nn.Linear):
            w = layer.weight
            cut = w.abs().flatten().kthvalue(int(fraction * w.numel())).values
            masks[w] = (w.abs() > cut).float()
            w.mul_(masks[w])


for epoch in range(4):
    if epoch in (1, 3):
        prune(0.3 if epoch == 1 else 0.6)
    for idx in torch.randperm(len(x)).split(30):
        loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        for w, m in masks.items():
            w.grad.mul_(m)
        opt.step()
        with torch.no_grad():
            for w, m in masks.items():
                w.mul_(m)
    zeros = sum((w == 0).sum().item() for w in masks)
    print(f"epoch {epoch} loss {loss.item():.4f} zeros {zeros}")
