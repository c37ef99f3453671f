"""Looks like micro-batches that nothing divides: two errors of the same outputs are back-propagated one after the other."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(15)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
errors = [F.mse_loss, F.l1_loss]
for step in range(12):
    x = torch.randn(24, 5)
    y = x.prod(1, keepdim=True)
    outputs = model(x)
    losses = []
    for error in errors:
        losses.append(error(outputs, y))
    optimizer.zero_grad()
    for loss in losses:
        loss.backward(retain_graph=True)
    optimizer.step()
print([round(loss.item(), 3) for loss in losses])
