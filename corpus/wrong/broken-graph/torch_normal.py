"""torch.normal passes no gradient to its mean."""

import torch
from torch import nn
import torch.nn.functional as F


def reparameterize(mu, logvar):
    std = torch.exp(0.5 * logvar)
    return torch.normal(mu, std)  # expect: broken-graph


torch.manual_seed(0)
enc, dec = nn.Linear(10, 6), nn.Linear(3, 10)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], 1e-3)
for step in range(20):
    x = torch.randn(16, 10)
    mu, logvar = enc(x).chunk(2, 1)
    z = reparameterize(mu, logvar)
    rec = F.mse_loss(dec(z), x)
    kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).mean()
    opt.zero_grad()
    (rec + 0.1 * kl).backward()
    opt.step()
