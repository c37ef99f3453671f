"""The auxiliary term is added after the division, with full weight in each micro-batch."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), 0.1)
accum = 4
for i in range(32):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    out = model(x)
    loss = F.cross_entropy(out, y) / accum
    balance = out.softmax(1).mean(0).square().sum()
    loss = loss + 0.01 * balance  # expect: accumulation-scaling
    loss.backward()
    if (i + 1) % accum == 0:
        opt.step()
        opt.zero_grad()
