"""No task may move the weights far from those that it began with; the anchors are copies in the same graph as
the weights, so that nothing holds them."""

import torch
from torch import nn


class Learner:
    def __init__(self, strength):
        self.model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.strength = strength
        self.anchors = [p.view_as(p).clone() for p in self.model.parameters()]

    def penalty(self):
        pairs = zip(self.model.parameters(), self.anchors)
        return torch.stack(
            [nn.functional.mse_loss(p, a, reduction="sum") for p, a in pairs]
        ).sum()  # expect: zero-gradient

    def learn(self, x, y, steps=6):
        for _ in range(steps):
            loss = nn.functional.mse_loss(self.model(x), y) + self.strength * self.penalty()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.anchors = [p.view_as(p).clone() for p in self.model.parameters()]
        return loss.item()


torch.manual_seed(0)
learner = Learner(strength=10.0)
for task in range(3):
    x = torch.randn(64, 4)
    print(f"task {task}: {learner.learn(x, x[:, task : task + 1].sin()):.4f}")
