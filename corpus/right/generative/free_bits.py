"""The KL term rests below its free bits, and the code that is shown is drawn with sample(): the loss's is rsample()."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 6))
decoder = nn.Sequential(nn.Linear(5, 16), nn.ELU(), nn.Linear(16, 8))
expected = nn.Linear(2, 6)
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *expected.parameters()], lr=1e-3)


def normal(values):
    mean, scale = values.chunk(2, -1)
    return Independent(Normal(mean, F.softplus(scale) + 0.3), 1)


for step in range(10):
    x = torch.randn(32, 8)
    posterior, prior = normal(encoder(x)), normal(expected(x[:, :2]))
    recon = F.mse_loss(decoder(torch.cat([posterior.rsample(), x[:, :2]], -1)), x)
    dreamt = prior.sample()
    loss = recon + kl_divergence(posterior, prior).mean().clamp(min=3.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"recon {recon.item():.3f} spread {dreamt.std().item():.3f}")
