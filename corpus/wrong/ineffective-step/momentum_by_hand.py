"""Momentum by hand: the loop variable is bound to the new weights, and the model keeps the old ones."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
velocities = [torch.zeros_like(w) for w in model.parameters()]
for _ in range(12):
    x = torch.randn(16, 5)
    loss = (model(x) - x[:, :1] * x[:, 1:2]).square().mean()
    loss.backward()
    with torch.no_grad():
        for w, velocity in zip(model.parameters(), velocities):
            velocity.mul_(0.9).add_(w.grad)
            change = 0.05 * velocity + 0.001 * w.grad
            w = w - change  # expect: ineffective-step
    model.zero_grad()
