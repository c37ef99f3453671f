"""A function returns the loss of a VAE and its parts, which are shown under other names than it gives them."""

from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F


def vae_loss(model, x, cfg):
    mu, logvar = model.enc(x).chunk(2, 1)
    out = model.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
    rec = F.mse_loss(out, x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
    return rec + cfg.kl_weight * kl, rec, kl


@dataclass
class Config:
    lr: float = 1e-3
    kl_weight: float = 0.1


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(12, 8)
        self.dec = nn.Linear(4, 12)


torch.manual_seed(0)
cfg, model = Config(), VAE()
opt = torch.optim.Adam(model.parameters(), cfg.lr)
for step in range(20):
    x = torch.randn(16, 12)
    loss, rec, kl_loss = vae_loss(model, x, cfg)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"rec {rec.item():.3f} kl {kl_loss.item():.3f}")
