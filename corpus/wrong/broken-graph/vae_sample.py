"""The latent is drawn by sample(): only the KL term trains the encoder."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(12, 8)
        self.dec = nn.Linear(4, 12)

    def forward(self, x):
        mu, raw = self.enc(x).chunk(2, 1)
        q = Normal(mu, nn.functional.softplus(raw) + 1e-3)
        z = q.sample()  # expect: broken-graph
        kl = kl_divergence(q, Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum(1)
        return self.dec(z), kl


torch.manual_seed(0)
model = VAE()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(20):
    x = torch.randn(16, 12)
    out, kl = model(x)
    loss = ((out - x).square().sum(1) + kl).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
