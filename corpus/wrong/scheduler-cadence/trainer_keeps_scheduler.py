"""The trainer makes an optimizer of its own from the settings, but advances the scheduler of the one it was given."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, scheduler, settings):
        self.model = model
        self.scheduler = scheduler
        self.optimizer = torch.optim.AdamW(model.parameters(), **settings)

    def fit(self, x, y, steps):
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
        return loss.item()


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
settings = {"lr": 5e-3, "weight_decay": 0.01}
warm = torch.optim.AdamW(model.parameters(), **settings)
scheduler = torch.optim.lr_scheduler.LinearLR(warm, 0.1, 1.0, total_iters=4)  # expect: scheduler-cadence
x = torch.randn(60, 10)
print(Trainer(model, scheduler, settings).fit(x, x[:, :3].argmax(1), 8))
