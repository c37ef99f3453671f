"""Looks like an optimizer built anew in every iteration and weights written around it: Reptile trains a
copy per task and moves the slow weights towards it by hand."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)

slow = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def task():
    a, b = torch.rand(()) * 2 - 1, torch.rand(()) * 2 - 1
    x = torch.linspace(-2, 2, 20)[:, None]
    return x, a * x**2 + b * x


def train_on(x, y, model, steps=5):
    inner = torch.optim.SGD(model.parameters(), lr=0.03)
    for _ in range(steps):
        inner.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        inner.step()
    return loss.item()


for iteration in range(8):
    outer_step = 0.5 * (1 - iteration / 8)
    fast = copy.deepcopy(slow)
    final = train_on(*task(), fast)
    with torch.no_grad():
        for p, q in zip(slow.parameters(), fast.parameters()):
            p += outer_step * (q - p)
    if iteration % 4 == 3:
        print(f"iteration {iteration + 1}, last inner loss {final:.4f}")
