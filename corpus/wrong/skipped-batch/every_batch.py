"""A guard against large gradients skips a batch, but keeps its gradient: it never lets another batch pass."""

import torch
from torch import nn

torch.manual_seed(0)
LIMIT = 3.0
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
skipped = 0
for step in range(24):
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(model(x), 2 * x[:, :1] + (8 if step % 6 == 0 else 0))
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    if norm > LIMIT:  # expect: skipped-batch
        skipped += 1
        continue
    optimizer.step()
    optimizer.zero_grad()
print(f"{skipped} batches skipped")
