"""Three ways to train on the same windows in the same order. Each yields after every update."""

from collections.abc import Iterator

from torch import nn
from torch.optim import Optimizer

import gradgate as gg

from .task import Task, mean_loss


def whole_batch(model: nn.Module, optimizer: Optimizer, task: Task) -> Iterator[float]:
    """Train on each whole window in one forward and one backward pass: the reference."""
    for epoch in range(task.epochs):
        for window in task.windows(epoch):
            x, y = task.join(window)
            optimizer.zero_grad()
            loss, _ = mean_loss(model, x, y)
            loss.backward()
            optimizer.step()
            yield loss.item()


def with_gradgate(model: nn.Module, optimizer: Optimizer, task: Task) -> Iterator[float]:
    """Train in micro-batches, each weighted by its count, and divide once."""
    accumulator = gg.Accumulator(optimizer)
    for epoch in range(task.epochs):
        for window in task.windows(epoch):
            with accumulator.update() as update:
                for x, y in update.micro_batches(window):
                    loss, count = mean_loss(model, x, y)
                    update.backward(loss, count=count)
            yield float(update.loss)


def by_hand(model: nn.Module, optimizer: Optimizer, task: Task) -> Iterator[float]:
    """Train with the usual loop: a mean of means, which gives every micro-batch the same weight."""
    for epoch in range(task.epochs):
        for window in task.windows(epoch):
            optimizer.zero_grad()
            total = 0.0
            for x, y in window:
                loss, _ = mean_loss(model, x, y)
                (loss / len(window)).backward()
                total += loss.item() / len(window)
            optimizer.step()
            yield total
