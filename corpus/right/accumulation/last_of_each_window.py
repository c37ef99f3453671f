"""Looks like windows one micro-batch short: the last micro-batch of each window has its own lines."""

import torch
from torch import nn

torch.manual_seed(4)
x = torch.randn(240, 6)
y = x @ torch.randn(6, 1) + 0.1 * torch.randn(240, 1)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.MSELoss()
ACCUMULATE = 4

for epoch in range(3):
    batches = list(zip(x.split(10), y.split(10)))
    for start in range(0, len(batches), ACCUMULATE):
        *first, last = batches[start : start + ACCUMULATE]
        optimizer.zero_grad()
        for inputs, targets in first:
            loss = criterion(model(inputs), targets) / ACCUMULATE
            loss.backward()
        inputs, targets = last
        outputs = model(inputs)
        (criterion(outputs, targets) / ACCUMULATE).backward()
        optimizer.step()
    print(f"epoch {epoch} loss {criterion(model(x), y).item():.4f}")
