"""Looks like a missing zero_grad: gradients are halved, not cleared, after each step, which makes a
momentum of 0.5 for plain SGD."""

import torch
from torch import nn

torch.manual_seed(0)
DECAY = 0.5

x = torch.randn(128, 6)
y = (x[:, 0] * x[:, 1] > 0).float()
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

for epoch in range(3):
    for rows in torch.randperm(128).split(16):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), y[rows])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p.grad.mul_(DECAY)
    with torch.no_grad():
        accuracy = ((model(x).squeeze(1) > 0) == y.bool()).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")
