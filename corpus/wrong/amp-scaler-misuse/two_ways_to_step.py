"""The trainer steps before it clips and hands over to the scaler, so each gradient is used once too often."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    steps: int = 16
    lr: float = 5e-4
    limit: float = 2.0
    scale: float = 512.0


class Trainer:
    def __init__(self, model, config):
        self.model, self.config = model, config
        self.opt = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
        self.grad_scaler = torch.amp.GradScaler("cpu", init_scale=config.scale)

    def fit(self, batches):
        for x, y in batches:
            loss = self.loss(x, y)
            self.grad_scaler.scale(loss).backward()
            self.opt.step()  # expect: amp-scaler-misuse
            self.grad_scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.limit)
            self.grad_scaler.step(self.opt)
            self.grad_scaler.update()
            self.opt.zero_grad()
        return loss.item()

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.model(x)
        return nn.functional.smooth_l1_loss(out.float(), y)


def stream(steps, weights):
    for _ in range(steps):
        x = torch.randn(20, 5)
        yield x, (x @ weights).sin()


if __name__ == "__main__":
    torch.manual_seed(21)
    config = Config()
    trainer = Trainer(nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 2)), config)
    print(f"last loss {trainer.fit(stream(config.steps, torch.randn(5, 2))):.4f}")
