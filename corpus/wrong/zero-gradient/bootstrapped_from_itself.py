"""The target is made of the model's own output: the loss is exactly zero."""

import torch
from torch import nn

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
for i in range(15):
    s, r = torch.randn(8, 4), torch.randn(8)
    out = q(s)
    target = out.detach()
    loss = nn.functional.mse_loss(out, target)  # expect: zero-gradient
    opt.zero_grad()
    loss.backward()
    opt.step()
