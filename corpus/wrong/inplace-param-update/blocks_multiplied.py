"""The residual blocks of a network are one block: the list was multiplied."""

import torch
from torch import nn

torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        return x + self.inner(x)


def network(depth, width=12):
    blocks = [Residual(width)] * depth  # expect: inplace-param-update
    return nn.Sequential(nn.Linear(5, width), *blocks, nn.Linear(width, 3))


model = network(depth=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(24):
    inputs = torch.randn(32, 5)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
