"""Entries of a dict of losses are added by their keys, after some steps, or in a loop over keys."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
enc, dec = nn.Linear(12, 6), nn.Linear(3, 12)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-3)
for step in range(10):
    x = torch.randn(16, 12)
    mu, logvar = enc(x).chunk(2, -1)
    recon = dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
    losses = {"recon": F.mse_loss(recon, x), "kl": -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()}
    loss = losses["recon"]
    if step >= 3:
        loss = loss + 0.1 * losses["kl"]
    losses["total"] = loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, {k: v.item() for k, v in losses.items()})
for step in range(10):
    x = torch.randn(16, 12)
    mu, logvar = enc(x).chunk(2, -1)
    recon = dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
    losses = {"recon": F.mse_loss(recon, x), "kl": -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()}
    losses["prior"] = mu.square().mean()
    total = losses["recon"] + sum(0.1 * losses[k] for k in ("kl", "prior"))
    opt.zero_grad()
    total.backward()
    opt.step()
    print(step, {k: v.item() for k, v in losses.items()})
