"""Attacks by hand: one clears through .data, one sums the gradients of several transforms, one has a new input."""

import torch
from torch import nn

torch.manual_seed(6)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()


def cleared_through_data(x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(4):
        criterion(model(x + delta), y).backward()
        delta.data = (delta + 0.05 * delta.grad.sign()).clamp(-0.2, 0.2)
        delta.grad.data.zero_()
    return (x + delta).detach()


def over_transforms(x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        delta.grad = None
        for _ in range(4):
            criterion(model(x + delta + 0.1 * torch.randn_like(x)), y).backward()
        with torch.no_grad():
            delta += 0.05 * delta.grad.sign()
    return (x + delta).detach()


def new_input(x, y):
    for _ in range(4):
        x = x.detach().requires_grad_()
        criterion(model(x), y).backward()
        x.data += 0.05 * x.grad.sign()
    return x.detach()


for attack in (cleared_through_data, over_transforms, new_input):
    for _ in range(5):
        x = torch.randn(16, 10)
        y = x[:, :3].argmax(1)
        attacked = attack(x, y)
        optimizer.zero_grad()
        criterion(model(attacked), y).backward()
        optimizer.step()
