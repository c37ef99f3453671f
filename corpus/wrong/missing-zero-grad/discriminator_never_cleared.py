"""Only the generator is cleared: the discriminator's steps add up all losses so far, its own and the generator's."""

import argparse

import torch
import torch.nn as nn


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LeakyReLU(0.2, inplace=True))


class Generator(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.model = nn.Sequential(block(latent, 24), nn.Linear(24, 3))

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(block(3, 24), nn.Linear(24, 1), nn.Sigmoid())

    def forward(self, x):
        return self.model(x)


parser = argparse.ArgumentParser()
parser.add_argument("--latent", type=int, default=4)
parser.add_argument("--steps", type=int, default=20)
opt = parser.parse_args()
torch.manual_seed(18)
generator, discriminator = Generator(opt.latent), Discriminator()
adversarial_loss = nn.BCELoss()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
valid, fake = torch.ones(32, 1), torch.zeros(32, 1)

for i in range(opt.steps):
    real = torch.randn(32, 3).cumsum(1)

    # Train Generator
    optimizer_G.zero_grad()
    gen = generator(torch.randn(32, opt.latent))
    g_loss = adversarial_loss(discriminator(gen), valid)
    g_loss.backward()
    optimizer_G.step()

    # Train Discriminator
    d_loss = (
        adversarial_loss(discriminator(real), valid) + adversarial_loss(discriminator(gen.detach()), fake)
    ) / 2
    d_loss.backward()
    optimizer_D.step()  # expect: missing-zero-grad

    if i % 10 == 9:
        print(f"[{i + 1}/{opt.steps}] D {d_loss.item():.4f} G {g_loss.item():.4f}")
