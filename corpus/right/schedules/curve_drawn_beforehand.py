"""The course of the rate is printed with an optimizer of its own; training then uses a constant rate."""

import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 2)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trial = torch.optim.SGD(model.parameters(), lr=0.2)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(trial, max_lr=0.2, total_steps=10)
    curve = []
    for _ in range(9):
        curve.append(round(one_cycle.get_last_lr()[0], 4))
        one_cycle.step()
print("one cycle would be", curve)

optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(40, 5)
for step in range(8):
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
