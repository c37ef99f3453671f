"""An empty micro-batch adds nothing to its window, and the window's step still runs. In the first window, three of four
are empty."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
linear = nn.Linear(4, 1)
sgd = torch.optim.SGD(linear.parameters(), lr=0.05)
batches = [torch.randn(6, 4) * (torch.rand(1) > 0.3) for _ in range(96)]
for i, x in enumerate(batches):
    if x.any():
        loss = F.mse_loss(linear(x).squeeze(1), x.sum(1))
        (loss / 4).backward()
    if (i + 1) % 4 == 0:
        sgd.step()
        sgd.zero_grad()
print(f"loss {loss.item():.3f}")
