"""The base class of all estimators makes the optimizer of what it knows: the subclass adds its attention afterwards,
and that keeps its initial values."""

import torch
from torch import nn


class Estimator(nn.Module):
    def __init__(self, features, width, lr):
        nn.Module.__init__(self)
        self.embed = nn.Sequential(nn.Linear(features, width), nn.GELU())
        self.regress = nn.Linear(width, 1)
        self.setup(lr)

    def setup(self, lr):
        self.opt = torch.optim.NAdam(self.parameters(), lr=lr)

    def pool(self, tokens):
        return tokens.mean(1)

    def forward(self, x):
        return self.regress(self.pool(self.embed(x))).squeeze(-1)

    def learn(self, x, y):
        error = nn.functional.huber_loss(self(x), y)
        self.opt.zero_grad()
        error.backward()
        self.opt.step()
        return float(error.detach())


class AttentiveEstimator(Estimator):
    def __init__(self, features, width=16, lr=5e-3):
        Estimator.__init__(self, features, width, lr)
        self.score = nn.Linear(width, 1)  # expect: param-not-in-optimizer

    def pool(self, tokens):
        return (self.score(tokens).softmax(1) * tokens).sum(1)


torch.manual_seed(11)
model = AttentiveEstimator(6)
for number in range(12):
    x = torch.randn(24, 5, 6)
    error = model.learn(x, x[..., 0].amax(1))
    if number % 6 == 5:
        print(f"batch {number + 1}: {error:.4f}")
