"""The trainer makes its optimizer, then a loader builds the model again and returns it."""

import torch
from torch import nn


def restored(state):
    network = nn.Linear(5, 2)
    network.load_state_dict(state)
    return network


class Fit:
    def __init__(self, state):
        self.network = nn.Linear(5, 2)
        self.sgd = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.network = restored(state)  # expect: stale-optimizer-params

    def step(self, x, y):
        self.sgd.zero_grad()
        loss = nn.functional.cross_entropy(self.network(x), y)
        loss.backward()
        self.sgd.step()


torch.manual_seed(0)
fit = Fit(nn.Linear(5, 2).state_dict())
for _ in range(8):
    fit.step(torch.randn(16, 5), torch.randint(2, (16,)))
