"""Both networks step at the end of the iteration: the discriminator's step also makes its score of fakes higher."""

import torch
from torch import nn

torch.manual_seed(2)

z_dim, batch = 5, 48
gen = nn.Sequential(nn.Linear(z_dim, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
disc = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1), nn.Sigmoid())
bce = nn.BCELoss()
optim_gen = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.999))
optim_disc = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.999))

moons = torch.rand(480) * 3.14
data = torch.stack([moons.cos(), moons.sin()], dim=1) + 0.05 * torch.randn(480, 2)

for epoch in range(3):
    for i, real in enumerate(data[torch.randperm(480)].split(batch)):
        optim_gen.zero_grad()
        optim_disc.zero_grad()

        # discriminator
        fake = gen(torch.randn(batch, z_dim))
        pred_real = disc(real).view(-1)
        pred_fake = disc(fake.detach()).view(-1)
        loss_disc = (bce(pred_real, torch.ones(batch)) + bce(pred_fake, torch.zeros(batch))) / 2
        loss_disc.backward()

        # generator
        pred = disc(fake).view(-1)
        loss_gen = bce(pred, torch.full((batch,), 1.0))
        loss_gen.backward()

        optim_disc.step()  # expect: cross-loss-leak
        optim_gen.step()
    print(f"epoch {epoch}: disc {loss_disc.item():.3f} gen {loss_gen.item():.3f}")
