"""The energy's derivative moves the samples, not the weights: it needs no graph, although the energy is in the loss."""

import torch
from torch import nn

torch.manual_seed(0)
energy = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3)
for step in range(8):
    real = torch.randn(64, 2) * 0.3 + 1.0
    x = torch.randn(64, 2)
    for _ in range(4):
        x.requires_grad_(True)
        e = energy(x)
        slope = torch.autograd.grad(e.sum(), x)[0]
        x = (x - 0.1 * slope + 0.05 * torch.randn_like(x)).detach()
    e_real, e_fake = energy(real), energy(x)
    loss = e_real.mean() - e_fake.mean() + 0.1 * (e_real.square() + e_fake.square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
