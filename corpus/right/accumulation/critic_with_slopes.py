"""Looks like an attack: the real inputs of a critic need a gradient, of which only the norm is shown."""

import torch
from torch import nn

torch.manual_seed(0)
D = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(D.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for step in range(20):
    opt.zero_grad()
    for _ in range(3):
        real = torch.randn(16, 4) + 1
        real.requires_grad_()
        out = D(real)
        (criterion(out, torch.ones(16, 1)) / 3).backward()
        norm = real.grad.norm().item()
        (criterion(D(torch.randn(16, 4)), torch.zeros(16, 1)) / 3).backward()
    opt.step()
    if step % 10 == 0:
        print(f"slope {norm:.4f}")
