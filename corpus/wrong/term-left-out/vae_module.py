"""The module returns both terms of a VAE, the configuration holds the weight of one, and the loss is the other."""

from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    lr: float = 1e-3
    kl_weight: float = 0.1


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(12, 8)
        self.dec = nn.Linear(4, 12)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        out = self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        return F.mse_loss(out, x), -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()


torch.manual_seed(0)
cfg, model = Config(), VAE()
opt = torch.optim.Adam(model.parameters(), cfg.lr)
for step in range(20):
    x = torch.randn(16, 12)
    rec, kl_loss = model(x)
    loss = rec  # expect: term-left-out
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"rec {rec.item():.3f} kl {kl_loss.item():.3f}")
