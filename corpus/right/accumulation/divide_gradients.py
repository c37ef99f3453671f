"""The losses are not divided at all: the gradients are, in place, once the window is complete and before the clipping."""

from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Cfg:
    lr: float = 0.05
    window: int = 3
    micro: int = 16
    epochs: int = 3
    max_norm: float = 1.0


class Accumulator:
    def __init__(self, params, optimizer, window, max_norm):
        self.params, self.optimizer = list(params), optimizer
        self.window, self.max_norm, self.count = window, max_norm, 0

    def backward(self, loss):
        loss.backward()
        self.count += 1
        if self.count == self.window:
            self.flush()

    def flush(self):
        if self.count == 0:
            return
        for p in self.params:
            if p.grad is not None:
                p.grad.div_(self.count)
        nn.utils.clip_grad_norm_(self.params, self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.count = 0


def main(cfg):
    torch.manual_seed(1)
    x = torch.randn(256, 5)
    y = x.abs().sum(1, keepdim=True) + 0.1 * torch.randn(256, 1)
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    acc = Accumulator(
        net.parameters(), torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9), cfg.window, cfg.max_norm
    )
    for epoch in range(cfg.epochs):
        losses = []
        for idx in torch.randperm(256).split(cfg.micro):
            loss = nn.functional.mse_loss(net(x[idx]), y[idx])
            acc.backward(loss)
            losses.append(loss.item())
        acc.flush()
        print(f"epoch {epoch} mse {sum(losses) / len(losses):.4f}")


main(Cfg())
