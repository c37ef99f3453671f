"""The decoder gets rsample(). A probe with its own optimizer gets sample(), concatenated with the condition."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
enc, dec, probe = nn.Linear(12, 8), nn.Linear(4 + 3, 12), nn.Linear(4 + 3, 2)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], 1e-3)
probe_opt = torch.optim.Adam(probe.parameters(), 1e-3)
for step in range(20):
    x, y = torch.randn(16, 12), torch.randn(16, 3)
    mu, raw = enc(x).chunk(2, 1)
    q = Normal(mu, F.softplus(raw) + 1e-3)
    kl = kl_divergence(q, Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum(1)
    loss = ((dec(torch.cat([q.rsample(), y], 1)) - x).square().sum(1) + kl).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    probed = F.cross_entropy(probe(torch.cat([q.sample(), y], 1)), (x[:, 0] > 0).long())
    probe_opt.zero_grad()
    probed.backward()
    probe_opt.step()
print(f"loss {loss.item():.3f}, probe {probed.item():.3f}")
