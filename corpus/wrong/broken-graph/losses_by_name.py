"""A function returns losses by name, and the caller adds them: one of them is a number."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
WEIGHTS = {"class": 1.0, "smooth": 0.2}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(8, 16)
        self.scores = nn.Linear(16, 3)

    def forward(self, series):
        hidden = self.features(series).tanh()
        return hidden, self.scores(hidden)


def losses_of(model, series, labels):
    hidden, scores = model(series)
    losses = {"class": F.cross_entropy(scores.flatten(0, 1), labels.flatten())}
    losses["smooth"] = hidden.diff(dim=1).square().mean().item()  # expect: broken-graph
    return losses


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    series = torch.randn(8, 6, 8).cumsum(1)
    losses = losses_of(model, series, series[..., :3].argmax(-1))
    total = 0.0
    for name, loss in losses.items():
        total = total + WEIGHTS[name] * loss
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
