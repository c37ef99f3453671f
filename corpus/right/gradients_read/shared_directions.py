"""Gradients of the shared layers are stored and cleared task by task, to find the combination with the least norm.
The heads are cleared only once a step.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self, n_tasks):
        self.shared = nn.Sequential(nn.Linear(6, 12), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(12, 1) for _ in range(n_tasks))
        parameters = [*self.shared.parameters(), *self.heads.parameters()]
        self.optim = torch.optim.SGD(parameters, lr=0.05)

    def loss(self, task, x, y):
        return F.mse_loss(self.heads[task](self.shared(x)).squeeze(1), y[:, task])

    def step(self, x, y):
        directions = []
        for task in range(len(self.heads)):
            self.optim.zero_grad()
            self.loss(task, x, y).backward()
            directions.append(torch.cat([p.grad.reshape(-1).clone() for p in self.shared.parameters()]))
        first, second = directions
        apart = first - second
        share = (-(second @ apart) / apart.square().sum().clamp_min(1e-9)).clamp(0, 1).item()
        self.optim.zero_grad()
        loss = share * self.loss(0, x, y) + (1 - share) * self.loss(1, x, y)
        loss.backward()
        self.optim.step()
        return share, loss.item()


torch.manual_seed(6)
trainer = Trainer(2)
for _ in range(10):
    x = torch.randn(16, 6)
    share, loss = trainer.step(x, torch.stack([x[:, 0], -2 * x[:, 0] + x[:, 1]], 1))
print(f"share {share:.3f} loss {loss:.4f}")
