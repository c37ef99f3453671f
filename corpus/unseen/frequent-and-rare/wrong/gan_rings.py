"""Small GAN on a ring. The discriminator loss runs back into the generator because the fake batch
is not detached, and the generator's gradients are not cleared between the two updates."""
import math
import torch
import torch.nn as nn

torch.manual_seed(3)
LATENT = 4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, z):
        return self.body(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.body(x).squeeze(1)


def real_batch(n):
    t = torch.rand(n) * 2 * math.pi
    return torch.stack([t.cos(), t.sin()], 1) + 0.03 * torch.randn(n, 2)


G, D = Generator(), Discriminator()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()

for it in range(30):
    opt_g.zero_grad()
    opt_d.zero_grad()
    real = real_batch(64)
    fake = G(torch.randn(64, LATENT))

    # discriminator
    real_logits = D(real)
    fake_logits = D(fake)  # expect: fake not detached for the discriminator
    d_loss = bce(real_logits, torch.ones(64)) + bce(fake_logits, torch.zeros(64))
    d_loss.backward()
    opt_d.step()

    # generator
    gen_logits = D(G(torch.randn(64, LATENT)))
    g_loss = bce(gen_logits, torch.ones(64))
    g_loss.backward()
    opt_g.step()

    if it % 10 == 0:
        print(f"{it:3d}  D {d_loss.item():.3f}  G {g_loss.item():.3f}")

with torch.no_grad():
    radius = G(torch.randn(500, LATENT)).norm(dim=1).mean().item()
print(f"mean radius of samples: {radius:.3f}")
