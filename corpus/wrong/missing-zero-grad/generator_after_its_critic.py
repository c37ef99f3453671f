"""The critic's gradients are cleared before its loss, the generator's never."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(12)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.disc = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def training_step(self, real, opt_g, opt_d):
        fake = self.gen(torch.randn(len(real), 4))
        self.disc.requires_grad_(True)
        d_loss = F.softplus(-self.disc(real)).mean() + F.softplus(self.disc(fake.detach())).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()

        self.disc.requires_grad_(False)
        g_loss = F.softplus(-self.disc(fake)).mean()
        g_loss.backward()
        opt_g.step()  # expect: missing-zero-grad
        return d_loss.item(), g_loss.item()


gan = Gan()
opt_g = torch.optim.Adam(gan.gen.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(gan.disc.parameters(), lr=1e-3)
for step in range(16):
    angle = 6.28 * torch.rand(32)
    d_loss, g_loss = gan.training_step(torch.stack([angle.cos(), angle.sin()], 1), opt_g, opt_d)
    if step % 8 == 7:
        print(f"step {step} d {d_loss:.4f} g {g_loss:.4f}")
