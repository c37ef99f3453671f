"""Accuracy under an attack: the loop variable gets the attacked inputs, and nothing trains the model."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
batches = [(torch.randn(16, 6), torch.randint(3, (16,))) for _ in range(10)]


def attacked(x, y, size=0.1):
    x = x.clone().requires_grad_()
    nn.functional.cross_entropy(model(x), y).backward()
    sign = x.grad.sign()
    x = x.detach() + size * sign
    return x


hits = 0
for x, y in batches:
    x.requires_grad_()
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        x = x + 0.1 * x.grad.sign()
        hits += (model(x).argmax(1) == y).sum().item()
    hits += (model(attacked(x, y, 0.2)).argmax(1) == y).sum().item()
print(hits)
