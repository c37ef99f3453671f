"""A training task: its model, its windows and its score."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
Window = Sequence[Pair]

NO_TARGET = -100  # the label that cross_entropy ignores by default


@dataclass(frozen=True)
class Task:
    """What the three ways of training have in common."""

    name: str
    about: str  # what is split, and how
    make_model: Callable[[], nn.Module]  # the same initial weights in every call
    windows: Callable[[int], Iterable[Window]]  # epoch -> windows of micro-batches, always the same
    join: Callable[[Window], Pair]  # the micro-batches of a window as one whole batch
    score: Callable[[nn.Module], float]
    score_name: str
    score_format: str
    epochs: int
    updates_per_epoch: int
    learning_rate: float


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss over the items that have a target, and their number."""
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=NO_TARGET)
    return loss, (y != NO_TARGET).sum()


@torch.no_grad()
def held_out_loss(model: nn.Module, pairs: Iterable[Pair]) -> float:
    """Return the mean loss over all items of all pairs: a sum and a count, divided once."""
    total, count = 0.0, 0
    for x, y in pairs:
        loss, items = mean_loss(model, x, y)
        total += loss.item() * int(items)
        count += int(items)
    return total / count
