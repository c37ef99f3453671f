"""The closure makes several backward calls, which add up on purpose: it clears once, before the first."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 64).unsqueeze(1)
y = torch.sin(3 * x)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=5)
batches = list(zip(x.split(16), y.split(16)))


def closure():
    lbfgs.zero_grad()
    total = 0.0
    for xb, yb in batches:
        loss = nn.functional.mse_loss(model(xb), yb) / len(batches)
        loss.backward()
        total += loss.item()
    return total


for it in range(4):
    print(it, lbfgs.step(closure))
