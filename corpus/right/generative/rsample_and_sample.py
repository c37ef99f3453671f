"""Trained by rsample(), and shown with sample()."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
enc, dec = nn.Linear(12, 8), nn.Linear(4, 12)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], 1e-3)
for step in range(20):
    x = torch.randn(16, 12)
    mu, raw = enc(x).chunk(2, 1)
    q = Normal(mu, nn.functional.softplus(raw) + 1e-3)
    z = q.rsample()
    kl = kl_divergence(q, Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum(1)
    loss = ((dec(z) - x).square().sum(1) + kl).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(((dec(q.sample()) - x) ** 2).mean().item())
