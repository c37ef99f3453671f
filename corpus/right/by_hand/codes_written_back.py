"""Latent codes of a batch are copied into the one tensor that the optimizer holds, and back after the step. A second tensor
of their name is made for the test, where an optimizer of its own fits it."""

import torch
from torch import nn

torch.manual_seed(7)
angle = 6.2832 * torch.rand(96)
data = torch.stack([angle.cos(), angle.sin(), (2 * angle).sin()], 1)
latents = 0.1 * torch.randn(64, 2)
decoder = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 3))
codes = torch.zeros(16, 2, requires_grad=True)
optimizer = torch.optim.SGD([{"params": decoder.parameters(), "lr": 0.2}, {"params": [codes], "lr": 5.0}])

for epoch in range(4):
    for rows in torch.randperm(64).split(16):
        with torch.no_grad():
            codes.copy_(latents[rows])
        loss = (decoder(codes) - data[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        latents[rows] = codes.detach()
    print(f"epoch {epoch} loss {loss.item():.4f}")

decoder.requires_grad_(False)
codes = torch.zeros(32, 2, requires_grad=True)
fit = torch.optim.SGD([codes], lr=5.0)
for _ in range(8):
    loss = (decoder(codes) - data[64:]).square().mean()
    fit.zero_grad()
    loss.backward()
    fit.step()
print(f"new points {loss.item():.4f}")
