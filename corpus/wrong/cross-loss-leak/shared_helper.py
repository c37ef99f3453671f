"""One function back-propagates all losses of a GAN; the discriminator's also reaches the generator."""

import torch
import torch.nn.functional as F
from torch import nn


def adversarial(logits, real):
    target = torch.full_like(logits, float(real))
    return F.binary_cross_entropy_with_logits(logits, target)


def backprop(logits, real):
    adversarial(logits, real).backward()


torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
disc = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_opt = torch.optim.Adam(gen.parameters(), lr=1e-3)
d_opt = torch.optim.Adam(disc.parameters(), lr=1e-3)
for i in range(12):
    real = torch.randn(32, 2) + 2
    g_opt.zero_grad()
    d_opt.zero_grad()
    fake = gen(torch.randn(32, 4))
    backprop(disc(real), True)
    backprop(disc(fake), False)  # expect: cross-loss-leak
    d_opt.step()
    fake = gen(torch.randn(32, 4))
    backprop(disc(fake), True)
    g_opt.step()
