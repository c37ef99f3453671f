"""The target network's parameters are averaged into the loop's own name: the target stays as it was at the start."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Byol:
    def __init__(self, dim, momentum):
        self.online = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 8))
        self.predictor = nn.Linear(8, 8)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.momentum = momentum

    def loss(self, a, b):
        with torch.no_grad():
            goal = F.normalize(self.target(b), dim=1)
        return 2 - 2 * (F.normalize(self.predictor(self.online(a)), dim=1) * goal).sum(1).mean()

    @torch.no_grad()
    def update_target(self):
        for target, online in zip(self.target.parameters(), self.online.parameters()):
            target = self.momentum * target + (1 - self.momentum) * online  # expect: ineffective-step


learner = Byol(12, 0.9)
optimizer = torch.optim.Adam([*learner.online.parameters(), *learner.predictor.parameters()], lr=1e-3)
for step in range(12):
    x = torch.randn(32, 12)
    loss = learner.loss(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    learner.update_target()
    if step % 4 == 3:
        print(f"{step + 1} {loss.item():.4f}")
