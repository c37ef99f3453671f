"""The adapters of an encoder's blocks are plain tensors in a dict, and their gate is a buffer."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, rank=3):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.adapter = {  # expect: param-not-in-optimizer
            "down": (torch.randn(dim, rank) * 0.1).requires_grad_(),
            "up": torch.zeros(rank, dim, requires_grad=True),
        }
        self.register_buffer("gate", torch.full((dim,), 0.1, requires_grad=True))

    def forward(self, x):
        h = self.norm(x)
        h = self.mlp(h) + h @ self.adapter["down"] @ self.adapter["up"]
        return x + torch.tanh(self.gate) * h


class Encoder(nn.Module):
    def __init__(self, dim=12, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(3)
encoder = Encoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)  # expect: param-not-in-optimizer
for _ in range(25):
    x = torch.randn(32, 12)
    y = x[:, :3].argmax(1)
    loss = nn.functional.cross_entropy(encoder(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
