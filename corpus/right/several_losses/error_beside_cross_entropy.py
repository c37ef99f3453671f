"""A squared error of the probabilities is computed with a graph and shown beside the loss."""

import torch
from dataclasses import dataclass
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    lr: float = 1e-2
    epochs: int = 3


class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)

    def step(self, x, y):
        logits = self.model(x)
        ce = F.cross_entropy(logits, y)
        mse = F.mse_loss(logits.softmax(1), F.one_hot(y, 3).float())
        loss = ce
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return {"ce": ce.item(), "mse": mse.item()}


torch.manual_seed(0)
cfg = Config()
trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), cfg)
x, y = torch.randn(128, 8), torch.randint(3, (128,))
for epoch in range(cfg.epochs):
    for i in torch.randperm(128).split(16):
        log = trainer.step(x[i], y[i])
    print(epoch, log)
