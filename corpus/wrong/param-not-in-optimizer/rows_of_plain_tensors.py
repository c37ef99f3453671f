"""A layer that scales features by the kind of a sample. Its tables are plain tensors, of which it reads rows."""

import torch
from torch import nn


class ScaledByKind(nn.Module):
    def __init__(self, kinds, width):
        super().__init__()
        self.scale = torch.ones(kinds, width, requires_grad=True)  # expect: param-not-in-optimizer

    def forward(self, h, kind):
        return h * self.scale[kind]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, 12)
        self.modulate = ScaledByKind(3, 12)
        self.leave = nn.Linear(12, 1)

    def forward(self, x, kind):
        return self.leave(torch.relu(self.modulate(self.enter(x), kind)))


torch.manual_seed(13)
network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for step in range(15):
    x, kind = torch.randn(32, 6), torch.randint(3, (32,))
    loss = nn.functional.mse_loss(network(x, kind).squeeze(1), x.sum(1) * kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
