"""The sum of a benchmark's gradients is read, and its step waits for a flag that is not set."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training = False
for _ in range(8):
    x, y = torch.randn(8, 6), torch.randint(2, (8,))
    nn.functional.cross_entropy(model(x), y).backward()
    if training:
        optimizer.step()
        optimizer.zero_grad()
print("squared gradients", {name: p.grad.square().sum().item() for name, p in model.named_parameters()})
