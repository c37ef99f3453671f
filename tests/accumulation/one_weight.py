"""The smallest update there is: one weight, a loss that is linear in it, a step of size one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

import gradgate as gg
from tests.tensors import tensor


def one_weight(**options: Any) -> tuple[Parameter, Optimizer, gg.Accumulator]:
    """A weight at 0 and plain SGD at rate 1: after one update the weight is minus the gradient."""
    weight = Parameter(tensor(0.0))
    model = nn.Module()
    model.weight = weight
    optimizer = SGD([weight], lr=1.0)
    return weight, optimizer, gg.Accumulator(optimizer, **{"model": model, **options})


def add(update: gg.Update, weight: torch.Tensor, window: Iterable[tuple[float, Any]]) -> None:
    """Go through a window of pairs: a micro-batch's mean gradient, and its count."""
    for gradient, count in update.micro_batches(window):
        update.backward(weight * gradient, count=count)


def update_by(
    accumulator: gg.Accumulator, weight: torch.Tensor, window: Iterable[tuple[float, Any]]
) -> gg.Update:
    with accumulator.update() as update:
        add(update, weight, window)
    return update


class StopError(Exception):
    """Raised by a test where an update is to be stopped."""


@contextmanager
def stopped_by(kind: type[BaseException] = StopError) -> Iterator[None]:
    """Expect the block to be left by an exception of this kind."""
    try:
        yield
    except kind:
        return
    except (KeyboardInterrupt, SystemExit) as other:  # which would end the whole test run
        pytest.fail(f"{type(other).__name__} came out of the block, not {kind.__name__}")
    pytest.fail(f"{kind.__name__} did not come out of the block")
