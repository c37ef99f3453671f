"""A GAN that draws a grid of samples after each epoch, in training mode as the DCGAN paper's code does, and scores
them by the discriminator's own loss only where it trains."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
fixed = torch.randn(4, 16, 4)
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

for epoch in range(3):
    for _ in range(5):
        angle = torch.rand(32, 1) * 6.28
        real = torch.cat([angle.cos(), angle.sin()], 1)
        fake = generator(torch.randn(32, 4))
        loss_d = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        discriminator.requires_grad_(False)
        loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        discriminator.requires_grad_(True)
    with torch.no_grad():
        grid = torch.cat([generator(noise) for noise in fixed])
    print(epoch, grid.norm(dim=1).mean().item())
