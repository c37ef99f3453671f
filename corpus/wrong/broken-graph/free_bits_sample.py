"""The code is drawn with sample(), and the KL term rests below its free bits: the encoder gets zero gradients."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 6))
decoder = nn.Sequential(nn.Linear(5, 16), nn.ELU(), nn.Linear(16, 8))
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
prior = Independent(Normal(torch.zeros(3), torch.ones(3)), 1)
for step in range(10):
    x = torch.randn(32, 8)
    mean, scale = encoder(x).chunk(2, -1)
    posterior = Independent(Normal(mean, F.softplus(scale) + 0.3), 1)
    code = posterior.sample()  # expect: broken-graph
    recon = F.mse_loss(decoder(torch.cat([code, x[:, :2]], -1)), x)
    loss = recon + kl_divergence(posterior, prior).mean().clamp(min=3.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"recon {recon.item():.3f}")
