"""The first batch's gradient is above the limit and stays, so that every later batch looks like a spike."""

import torch
from torch import nn


def grad_norm(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
skipped = 0
for step in range(30):
    x = torch.randn(16, 5)
    y = x.sum(1, keepdim=True) * (100.0 if step == 0 else 1.0)
    nn.functional.mse_loss(model(x), y).backward()
    if grad_norm(model) > 40.0:  # expect: skipped-batch
        skipped += 1
        continue
    optimizer.step()
    optimizer.zero_grad()
print("skipped", skipped)
