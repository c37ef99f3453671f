"""LGM without a trainer: the gradient is cleared before each micro-batch, and stepped after the last."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(16):
    x, y = torch.randn(4, 6), torch.randint(2, (4,))
    optimizer.zero_grad()  # expect: zero-grad-misplaced
    loss = nn.functional.cross_entropy(model(x), y) / 4
    loss.backward()
    if step % 4 == 3:
        optimizer.step()
