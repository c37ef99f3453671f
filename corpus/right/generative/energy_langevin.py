"""The samples are leaves that get gradients of their own and are moved by hand by Langevin steps, while the net is
switched off for that time."""

import torch
import torch.nn as nn

torch.manual_seed(0)
energy = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(energy.parameters(), lr=1e-3)
replay = torch.randn(256, 2)


def langevin(x, steps=8, size=0.05):
    energy.requires_grad_(False)
    x = x.clone().requires_grad_()
    for _ in range(steps):
        (g,) = torch.autograd.grad(energy(x).sum(), x)
        x.data.add_(-size * g + (2 * size) ** 0.5 * 0.1 * torch.randn_like(x))
    energy.requires_grad_(True)
    return x.detach()


def data(n):
    t = torch.rand(n) * 6.28
    return 1.5 * torch.stack([t.cos(), t.sin()], 1) + 0.05 * torch.randn(n, 2)


for epoch in range(2):
    for _ in range(10):
        pick = torch.randint(0, 256, (32,))
        start = torch.where(torch.rand(32, 1) < 0.05, torch.randn(32, 2), replay[pick])
        neg = langevin(start)
        replay[pick] = neg
        pos = data(32)
        e_pos, e_neg = energy(pos), energy(neg)
        loss = e_pos.mean() - e_neg.mean() + 0.1 * (e_pos.pow(2) + e_neg.pow(2)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} e+ {e_pos.mean().item():.4f} e- {e_neg.mean().item():.4f}")
