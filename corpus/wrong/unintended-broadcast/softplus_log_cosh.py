"""A log-cosh loss by softplus broadcasts outputs of shape (N, 1) and labels of shape (N,)."""

import torch
from torch import nn


def log_cosh(output, labels):
    error = output - labels  # expect: unintended-broadcast
    return torch.mean(error + nn.functional.softplus(-2.0 * error))


torch.manual_seed(0)
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(8):
    x = torch.randn(24, 5)
    loss = log_cosh(model(x), x.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
