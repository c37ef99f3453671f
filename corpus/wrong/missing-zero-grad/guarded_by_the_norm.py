"""A step is skipped if the gradient's norm isn't finite, and no line clears. No batch of this run is skipped."""

import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 20), nn.Softplus(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
skipped = 0
for batch in range(30):
    x = torch.rand(16, 6) + 0.1
    loss = (model(x).squeeze(1) - x.prod(1)).square().mean()
    loss.backward()
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 5.0)):
        optimizer.step()  # expect: missing-zero-grad
    else:
        skipped += 1
print(skipped)
