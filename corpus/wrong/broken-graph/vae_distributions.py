"""The latent is drawn without its graph, so that the reconstruction does not train the encoder."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence


class VAE(nn.Module):
    def __init__(self, d=16, z=3):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 32), nn.ReLU(), nn.Linear(32, d))
        self.register_buffer("zero", torch.zeros(z))

    def elbo(self, x):
        mean, raw = self.enc(x).chunk(2, -1)
        q = Independent(Normal(mean, F.softplus(raw) + 1e-3), 1)
        prior = Independent(Normal(self.zero, torch.ones_like(self.zero)), 1)
        z = q.sample()  # expect: broken-graph
        recon = Independent(Normal(self.dec(z), 1.0), 1).log_prob(x)
        return (recon - kl_divergence(q, prior)).mean()


torch.manual_seed(17)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
for i in range(10):
    opt.zero_grad()
    loss = -vae.elbo(torch.randn(32, 16))
    loss.backward()
    opt.step()
print(loss.item())
