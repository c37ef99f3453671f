"""The gates of the adapters start at zero, but are buffers and no parameters: they never open, and no adapter learns."""

import torch
import torch.nn.functional as F
from torch import nn


class Adapter(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)
        self.register_buffer("gate", torch.zeros(()))

    def forward(self, x):
        return x + torch.tanh(self.gate) * self.up(F.relu(self.down(x)))  # expect: zero-gradient


torch.manual_seed(17)
x = torch.randn(120, 8)
y = x.abs().sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(8, 24), nn.GELU(), Adapter(24, 6), Adapter(24, 6), nn.Linear(24, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(2):
    for part in torch.randperm(120).split(24):
        loss = F.mse_loss(net(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
