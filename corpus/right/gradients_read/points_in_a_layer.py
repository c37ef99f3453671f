"""A layer of a network for y' = -y keeps its points as a plain tensor. Losses and a plot read their gradients."""

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, points=32):
        super().__init__()
        self.points = torch.linspace(0, 2, points).unsqueeze(1).requires_grad_()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self):
        y = 1 + self.points * self.net(self.points)
        (slope,) = torch.autograd.grad(y.sum(), self.points, create_graph=True)
        return y, slope


class Problem(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Field()

    def forward(self):
        y, slope = self.field()
        return (slope + y).square().mean()


torch.manual_seed(0)
problem = Problem()
optimizer = torch.optim.Adam(problem.parameters(), lr=1e-2)
for _ in range(40):
    loss = problem()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    problem.field.points.grad = None
print(f"{loss.item():.5f}")
