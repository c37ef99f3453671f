"""One call returns two losses of two networks. Each is back-propagated on its own; their sum is only displayed."""

import torch
from torch import nn

torch.manual_seed(0)
up, down = nn.Linear(6, 1), nn.Linear(6, 1)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (up, down)]


def both(x, y):
    high = torch.relu(y - up(x)).mean() + 0.1 * up(x).abs().mean()
    low = torch.relu(down(x) - y).mean() + 0.1 * down(x).abs().mean()
    return high, low


for step in range(12):
    x = torch.randn(16, 6)
    high, low = both(x, x.sum(1, keepdim=True))
    for optimizer in optimizers:
        optimizer.zero_grad()
    high.backward()
    low.backward()
    for optimizer in optimizers:
        optimizer.step()
    width = high + low
    if step % 4 == 0:
        print(f"{width.item():.3f}")
