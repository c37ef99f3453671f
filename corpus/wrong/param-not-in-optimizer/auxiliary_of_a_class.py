"""A trainer makes its optimizer before the auxiliary head, an object of a class of its own."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, h):
        return self.out(self.norm(h)).squeeze(1)


class Learner:
    def __init__(self):
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
        self.main = Head(16)
        self.optimizer = torch.optim.Adam([*self.trunk.parameters(), *self.main.parameters()], lr=0.01)
        self.auxiliary = Head(16)  # expect: param-not-in-optimizer

    def update(self, x, y, size):
        h = torch.tanh(self.trunk(x))
        loss = F.mse_loss(self.main(h), y) + 0.3 * F.mse_loss(self.auxiliary(h), size)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


learner = Learner()
for _ in range(12):
    x = torch.randn(16, 6)
    learner.update(x, x.sum(1), x.norm(dim=1))
