"""A block asks whether it has a positional embedding, and adds a fixed wave in its place."""

import math

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, length, dim, learned=True):
        super().__init__()
        self.position = nn.Embedding(length, dim) if learned else None
        self.register_buffer("wave", torch.sin(2 * math.pi * torch.arange(length) / length))
        self.mlp = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, dim))
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        if self.position:
            x = x + self.wave[: x.shape[1], None]  # expect: unreached-parameter
        return self.head((x + self.mlp(x)).mean(1))


torch.manual_seed(0)
model = Encoder(6, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(20):
    x = torch.randn(16, 6, 8)
    y = (x[:, 0, 0] > 0).long()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
