"""The counter is compared with `>`, so that five micro-batches go into each update, each weighted by a fourth."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class TrainerConfig:
    n_epochs: int = 2
    micro_batch: int = 16
    accumulate: int = 4
    lr: float = 0.05
    momentum: float = 0.9


class Trainer:
    def __init__(self, model, config):
        self.model = model
        self.cfg = config
        self.optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)
        self.pending = 0
        self.updates = 0

    def micro_step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        (loss / self.cfg.accumulate).backward()
        self.pending += 1
        if self.pending > self.cfg.accumulate:  # expect: accumulation-window
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.pending = 0
            self.updates += 1
        return loss.item()

    def fit(self, x, y):
        for epoch in range(self.cfg.n_epochs):
            losses = []
            for idx in torch.randperm(len(x)).split(self.cfg.micro_batch):
                losses.append(self.micro_step(x[idx], y[idx]))
            print(f"[{epoch}] mse={sum(losses) / len(losses):.4f} updates={self.updates}")


if __name__ == "__main__":
    torch.manual_seed(7)
    x = torch.randn(640, 12)
    y = torch.sin(x[:, :3]).sum(1, keepdim=True) + 0.1 * torch.randn(640, 1)
    net = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    Trainer(net, TrainerConfig()).fit(x, y)
