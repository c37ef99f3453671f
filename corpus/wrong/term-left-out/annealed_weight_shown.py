"""The weight of the smoothness grows with the epochs and is printed, but the loss is the error alone."""

import torch
from torch import nn

torch.manual_seed(4)
t = torch.linspace(0, 6, 120)[:, None]
noisy = torch.sin(t) + 0.2 * torch.randn_like(t)
curve = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam(curve.parameters(), lr=1e-2)


def roughness(values):
    return values.diff(dim=0).diff(dim=0).square().sum()


for epoch in range(12):
    lambda_smooth = min(1.0, (epoch + 1) / 6)
    fitted = curve(t)
    error = (fitted - noisy).square().mean()
    smooth = roughness(fitted)
    loss = error  # expect: term-left-out
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{epoch} weight {lambda_smooth:.2f} error {error.item():.4f} roughness {smooth.item():.5f}")
