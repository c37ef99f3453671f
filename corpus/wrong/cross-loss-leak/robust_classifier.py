"""The inner steps that look for the worst perturbation back-propagate through the classifier, too: their gradients
are part of each update, three losses on top of the one that is meant."""

import torch
import torch.nn.functional as F
from torch import nn


class Robust:
    def __init__(self, model, radius=0.2, inner=3):
        self.model = model
        self.radius, self.inner = radius, inner
        self.opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def worst(self, x, y):
        noise = torch.zeros_like(x)
        for _ in range(self.inner):
            moved = (x + noise).requires_grad_()
            F.cross_entropy(self.model(moved), y).backward()  # expect: cross-loss-leak
            noise = (noise + 0.1 * moved.grad.sign()).clamp(-self.radius, self.radius)
        return x + noise

    def update(self, x, y):
        self.opt.zero_grad()
        hard = self.worst(x, y)
        loss = F.cross_entropy(self.model(hard), y)
        loss.backward()
        self.opt.step()
        return loss.item()


torch.manual_seed(1)
x = torch.randn(120, 8)
y = (x[:, 0] + x[:, 1] > 0).long()
robust = Robust(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2)))
for epoch in range(3):
    losses = [robust.update(x[part], y[part]) for part in torch.randperm(120).split(30)]
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
