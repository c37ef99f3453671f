"""A table of weights for several objectives. It has a weight that this objective doesn't need, and no weight for a term
that is only shown. An objective is set, and the next line adds to another."""

import torch
import torch.nn.functional as F
from torch import nn

WEIGHTS = {"recon": 1.0, "kl": 0.2, "tv": 0.01}

torch.manual_seed(3)
enc, dec = nn.Linear(10, 8), nn.Linear(4, 10)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=2e-3)
for step in range(12):
    x = torch.randn(24, 10)
    mu, logvar = enc(x).chunk(2, 1)
    out = dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
    terms = {
        "recon": F.mse_loss(out, x),
        "kl": -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean(),
        "spread": mu.std(0).mean(),
    }
    kl_loss = terms["kl"]
    total = kl_loss + terms["recon"]
    total = sum(WEIGHTS[name] * value for name, value in terms.items() if name in WEIGHTS)
    opt.zero_grad()
    total.backward()
    opt.step()
    print(
        step, " ".join(f"{name} {value.item():.3f}" for name, value in terms.items()), f"{kl_loss.item():.3f}"
    )
