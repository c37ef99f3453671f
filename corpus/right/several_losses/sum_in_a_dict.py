"""The sum of the losses is an entry of the dict, beside its parts."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(12, 6), nn.Linear(3, 12)

    def loss_function(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        recon = self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        recons_loss = F.mse_loss(recon, x)
        kld_loss = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
        loss = recons_loss + 0.1 * kld_loss
        return {"loss": loss, "recon": recons_loss, "kld": kld_loss}


torch.manual_seed(0)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
for step in range(10):
    losses = vae.loss_function(torch.randn(16, 12))
    opt.zero_grad()
    losses["loss"].backward()
    opt.step()
    print(step, {k: v.item() for k, v in losses.items()})
