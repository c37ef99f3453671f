"""A batch is skipped after backward, and the next one clears first."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x, y = torch.randn(8, 6), torch.randint(2, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    if loss.item() > 0.85:
        continue
    opt.step()
