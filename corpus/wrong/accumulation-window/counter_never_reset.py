"""A step once enough samples are collected. Nothing sets the number of collected samples back to zero."""

import torch
from torch import nn

torch.manual_seed(10)
WANTED = 40
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(200, 5)
targets = inputs.prod(1, keepdim=True)

collected = 0
for start in range(0, 200, 10):
    x, y = inputs[start : start + 10], targets[start : start + 10]
    mean = nn.functional.mse_loss(model(x), y)
    (mean * len(x) / WANTED).backward()
    collected += len(x)
    if collected >= WANTED:  # expect: accumulation-window
        optimizer.step()
        optimizer.zero_grad()
