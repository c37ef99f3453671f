"""Batches whose gradient norm is above a limit are skipped with their gradient kept: after the first, the norm of the
sum stays above the limit, and no step follows for the rest of the run."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, limit):
        self.model, self.limit, self.skipped = model, limit, 0
        self.opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def update(self, x, y):
        nn.functional.mse_loss(self.model(x), y).backward()
        norm = sum(p.grad.square().sum() for p in self.model.parameters()).sqrt()
        if norm > self.limit:  # expect: skipped-batch
            self.skipped += 1
            return
        self.opt.step()
        self.opt.zero_grad()


torch.manual_seed(0)
x = torch.randn(200, 4)
y = x.sum(1, keepdim=True)
y[100:110] += 200.0
trainer = Trainer(nn.Linear(4, 1), limit=20.0)
for first in range(0, 200, 10):
    trainer.update(x[first : first + 10], y[first : first + 10])
print("skipped", trainer.skipped)
