"""The line that adds the divergence was left above the one without it, which overwrites the sum."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(12, 6)
        self.dec = nn.Linear(3, 12)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        return self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar

    def losses(self, x):
        out, mu, logvar = self(x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
        return F.mse_loss(out, x, reduction="sum") / len(x), kl


def train(vae, beta=0.1):
    opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
    for epoch in range(3):
        for _ in range(5):
            recon, kl = vae.losses(torch.randn(16, 12))
            loss = recon + beta * kl
            loss = recon  # expect: term-left-out
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f} kl {kl.item():.3f}")


torch.manual_seed(0)
train(VAE())
