"""The L1 penalty is shown and in the loss; its weight is passed on twice before it is read."""

import torch
from dataclasses import dataclass
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    lr: float = 1e-2
    l1_lambda: float = 1e-4
    epochs: int = 3


class Trainer:
    def __init__(self, model, cfg, l1_lambda=1e-4):
        self.model, self.cfg = model, cfg
        self.l1_lambda = l1_lambda
        self.opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)

    def step(self, x, y):
        logits = self.model(x)
        ce = F.cross_entropy(logits, y)
        l1 = sum(p.abs().sum() for p in self.model.parameters())
        loss = ce + self.l1_lambda * l1
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return {"ce": ce.item(), "l1": l1.item()}


torch.manual_seed(0)
cfg = Config()
trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), cfg, l1_lambda=cfg.l1_lambda)
x, y = torch.randn(128, 8), torch.randint(3, (128,))
for epoch in range(cfg.epochs):
    for i in torch.randperm(128).split(16):
        log = trainer.step(x[i], y[i])
    print(epoch, log)
