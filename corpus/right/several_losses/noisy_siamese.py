"""Two passes of one network are compared, one of them scaled and with noise added."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
f = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))
dec = nn.Linear(8, 6)
opt = torch.optim.Adam([*f.parameters(), *dec.parameters()], 1e-3)
for _ in range(20):
    x = torch.randn(16, 6)
    a, b = f(x + 0.1 * torch.randn_like(x)), f(x + 0.1 * torch.randn_like(x))
    loss = F.mse_loss(a, b) + F.mse_loss(dec(a), x) + F.mse_loss(0.1 * torch.randn_like(a) + 0.9 * a, b)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
