"""A weight with another spelling than its term. The default for terms without a weight is 0, so the term drops out."""

import torch
import torch.nn.functional as F
from torch import nn


class Objective:
    def __init__(self, weights=None):
        self.weights = dict(
            task=1.0,
            sparsty=0.05,  # expect: term-left-out
            smoothness=0.1,
        )
        self.weights.update(weights or {})

    def terms(self, codes, out, y):
        parts = {}
        parts["task"] = F.cross_entropy(out, y)
        sparsity = codes.abs().mean()
        parts["sparsity"] = sparsity
        parts["smoothness"] = (codes[:, 1:] - codes[:, :-1]).pow(2).mean()
        return parts

    def __call__(self, parts):
        total = 0.0
        for name, value in parts.items():
            total = total + self.weights.get(name, 0.0) * value
        return total


torch.manual_seed(1)
encoder, head = nn.Linear(10, 16), nn.Linear(16, 3)
objective = Objective()
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for step in range(12):
    x, y = torch.randn(32, 10), torch.randint(3, (32,))
    codes = torch.relu(encoder(x))
    parts = objective.terms(codes, head(codes), y)
    loss = objective(parts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, {name: round(value.item(), 3) for name, value in parts.items()})
