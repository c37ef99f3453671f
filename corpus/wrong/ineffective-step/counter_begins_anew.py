"""A window of 16 micro-batches, but the counter starts again in each epoch of 10."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = 16
for epoch in range(3):
    count = 0
    for batch in range(10):
        x, y = torch.randn(8, 6), torch.randint(2, (8,))
        (nn.functional.cross_entropy(model(x), y) / window).backward()
        count += 1
        if count == window:  # expect: ineffective-step
            optimizer.step()
            optimizer.zero_grad()
            count = 0
