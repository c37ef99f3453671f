"""Losses of shape (12,) times weights of shape (12, 1)."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(15):
    x, y, w = torch.randn(12, 5), torch.randint(3, (12,)), torch.rand(12, 1)
    losses = F.cross_entropy(model(x), y, reduction="none")
    loss = (losses * w).mean()  # expect: unintended-broadcast
    opt.zero_grad()
    loss.backward()
    opt.step()
