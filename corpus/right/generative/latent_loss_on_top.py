"""The encoder steps after the reconstruction; the generator's step also uses a latent loss, on purpose (BicycleGAN)."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
generator = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 12))
opt_e = torch.optim.Adam(encoder.parameters(), lr=1e-3)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
mixing = torch.randn(4, 12)
for step in range(160):
    x, z = torch.randn(32, 4) @ mixing, torch.randn(32, 4)
    opt_e.zero_grad()
    opt_g.zero_grad()
    F.mse_loss(generator(encoder(x)), x).backward()
    opt_e.step()
    latent = 0.5 * F.mse_loss(encoder(generator(z)), z)
    latent.backward()
    opt_g.step()
print(f"latent {latent.item():.3f}")
