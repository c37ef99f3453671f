"""The KL term of a VAE is printed, and left out of the loss."""

import torch
from torch import nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(12, 8)
        self.dec = nn.Linear(4, 12)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


torch.manual_seed(0)
model = VAE()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(20):
    x = torch.randn(16, 12)
    out, mu, logvar = model(x)
    rec_loss = F.mse_loss(out, x)
    kl_loss = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
    loss = rec_loss  # expect: term-left-out
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"rec {rec_loss.item():.3f} kl {kl_loss.item():.3f}")
