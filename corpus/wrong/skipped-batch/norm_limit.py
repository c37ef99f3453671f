"""A trainer returns early for a large gradient, and leaves it for the next batch."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.opt.zero_grad()

    def train_step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if norm > self.limit:  # expect: skipped-batch
            return None
        self.opt.step()
        self.opt.zero_grad()
        return loss.item()

    limit = 30.0


torch.manual_seed(3)
t = Trainer()
for i in range(40):
    x = torch.randn(8, 6) * (6 if i % 7 == 3 else 1)
    t.train_step(x, x.sum(1, keepdim=True))
