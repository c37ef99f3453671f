"""Each round makes a new copy of a shared model, adds up three batches in it, and lends the gradients."""

import copy

import torch
from torch import nn


class Client:
    def __init__(self, shared):
        self.net = copy.deepcopy(shared)

    def lend(self, shared):
        for _ in range(3):
            x = torch.randn(16, 5)
            loss = (self.net(x).squeeze(-1) - x.sum(1)).square().mean() / 3
            loss.backward()
        for mine, theirs in zip(self.net.parameters(), shared.parameters()):
            theirs.grad = mine.grad


torch.manual_seed(1)
shared = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(shared.parameters(), lr=1e-2)
for round_ in range(15):
    client = Client(shared)
    optimizer.zero_grad()
    client.lend(shared)
    optimizer.step()
print(f"{shared[0].weight.norm():.3f}")
