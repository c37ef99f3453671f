"""Noise is added to the gradients before the step, the targets are smoothed so that the loss does not go to 0, and early
epochs see only a part of the data."""

from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass(frozen=True)
class Plan:
    epochs: int = 4
    batch: int = 16
    lr: float = 0.05
    noise: float = 0.01
    gamma: float = 0.55
    smoothing: float = 0.1


def add_noise(params, step, plan):
    std = (plan.noise / (1 + step) ** plan.gamma) ** 0.5
    for p in params:
        p.grad.add_(torch.randn_like(p.grad), alpha=std)


def main(plan):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    margin = x[:, 0] + 0.5 * x[:, 1]
    y = (margin > 0).long()
    easy_first = margin.abs().argsort(descending=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.SGD(model.parameters(), lr=plan.lr, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=plan.smoothing)
    step = 0
    for epoch in range(plan.epochs):
        share = int(256 * (epoch + 1) / plan.epochs)
        pool = easy_first[:share]
        for idx in pool[torch.randperm(share)].split(plan.batch):
            opt.zero_grad()
            loss = loss_fn(model(x[idx]), y[idx])
            loss.backward()
            add_noise(model.parameters(), step, plan)
            opt.step()
            step += 1
        print(f"epoch {epoch} samples {share} loss {loss.item():.4f}")


main(Plan())
