"""Both optimizers of a GAN are given the generator, so the discriminator keeps its initial weights."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Gan:
    def __init__(self):
        self.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.disc = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-3)
        self.opt_d = torch.optim.Adam(self.gen.parameters(), lr=1e-3)  # expect: ineffective-step

    def step(self, real):
        fake = self.gen(torch.randn(len(real), 4))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.opt_d.zero_grad()
        d_loss = F.binary_cross_entropy_with_logits(self.disc(real), ones)
        d_loss = d_loss + F.binary_cross_entropy_with_logits(self.disc(fake.detach()), zeros)
        d_loss.backward()
        self.opt_d.step()
        self.opt_g.zero_grad()
        self.disc.requires_grad_(False)
        g_loss = F.binary_cross_entropy_with_logits(self.disc(fake), ones)
        g_loss.backward()
        self.disc.requires_grad_(True)
        self.opt_g.step()
        return d_loss.item(), g_loss.item()


gan = Gan()
for step in range(20):
    angle = 6.28 * torch.rand(32)
    d_loss, g_loss = gan.step(torch.stack([angle.cos(), angle.sin()], 1))
    if step % 10 == 9:
        print(f"step {step} d {d_loss:.4f} g {g_loss:.4f}")
