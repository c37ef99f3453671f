"""Looks as if zero_grad, backward and step were torn apart: the training step is a generator that is
resumed twice per batch, and each stands where it should."""

import torch
import torch.nn.functional as F
from torch import nn


def training_steps(model, optimizer, batches):
    """Yields the loss before each update; the caller may send back a factor for the rate."""
    base = [group["lr"] for group in optimizer.param_groups]
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        factor = yield loss.item()
        for group, lr in zip(optimizer.param_groups, base):
            group["lr"] = lr * (factor if factor is not None else 1.0)
        optimizer.step()
        yield None


def shuffled(x, y, size, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(size):
            yield x[rows], y[rows]


def main():
    torch.manual_seed(30)
    x = torch.randn(96, 5)
    y = (x.norm(dim=1) > 2).long()
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 2))
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.002)
    steps = training_steps(model, optimizer, shuffled(x, y, 48, epochs=3))
    losses = []
    for loss in steps:
        losses.append(loss)
        steps.send(0.5 if len(losses) > 4 else 1.0)
    print(" ".join(f"{value:.4f}" for value in losses))


main()
