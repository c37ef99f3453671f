"""The divergence is an entry of the dict that is printed, and is not added to the loss."""

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


torch.manual_seed(0)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
for step in range(10):
    x = torch.randn(16, 12)
    recon, mu, logvar = vae(x)
    losses = {}
    losses["recon_loss"] = F.mse_loss(recon, x)
    losses["kl_loss"] = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
    losses["sparsity_loss"] = mu.abs().mean()
    loss = losses["recon_loss"] + 0.1 * losses["sparsity_loss"]  # expect: term-left-out
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, " ".join(f"{k}={v.item():.3f}" for k, v in losses.items()))
