"""LayerNorm made in forward, in a tiny model."""

import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, 1)

    def forward(self, x):
        h = self.a(x)
        norm = nn.LayerNorm(h.shape[-1])  # expect: param-not-in-optimizer
        return self.b(torch.relu(norm(h)))


def fit(model, n):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(n):
        x = torch.randn(8, 6)
        loss = (model(x).squeeze(-1) - x.sum(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


fit(Block(6), 10)
