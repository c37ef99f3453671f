"""A random projection per step, frozen: sliced Wasserstein distance."""

import torch
from torch import nn

torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.Adam(gen.parameters(), lr=1e-2)
for _ in range(12):
    proj = nn.Linear(3, 10, bias=False).requires_grad_(False)
    fake, real = gen(torch.randn(32, 2)), torch.randn(32, 3) + 1
    loss = (proj(fake).sort(0).values - proj(real).sort(0).values).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
