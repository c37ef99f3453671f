"""Predictions of shape (32, 1) minus targets of shape (32,): all pairs."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(20):
    x = torch.randn(32, 6)
    y = x.sum(1)
    pred = model(x)
    loss = ((pred - y) ** 2).mean()  # expect: unintended-broadcast
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
