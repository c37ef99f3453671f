"""What ``encode`` returns beside tensors reaches the loss only if it is the same for all micro-batches."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import ShapeError
from tests.messages import raises

Encode = Callable[[Tensor, Tensor], Any]


def run(encode: Encode, loss_fn: Callable[[Any], Tensor], parts: int = 4) -> list[Any]:
    """Return what one update passed to the loss."""
    model, seen = nn.Linear(2, 2), []
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)

    def loss(window: Any) -> Tensor:
        seen.append(window)
        return loss_fn(window)

    accumulator.step_coupled(lambda x: encode(model(x), x), list(torch.randn(8, 2).split(8 // parts)), loss)
    return seen


REFUSED: dict[str, tuple[Encode, str]] = {
    "an array": (lambda z, x: (z, x.numpy()), "ndarray"),
    "a distribution": (lambda z, x: (z, [torch.distributions.Normal(z, 1.0)]), "Normal"),
    "a namespace": (lambda z, x: (z, SimpleNamespace(code=z)), "SimpleNamespace"),
    "a deque": (lambda z, x: {"z": z, "more": deque([z])}, "deque"),
    "a set": (lambda z, x: (z, {1, 2}), "set"),
}


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_only_the_first_micro_batch_would_give_is_refused(name: str, parts: int) -> None:
    encode, kind = REFUSED[name]
    with raises(ShapeError, "an encoder that returns an array", f"type {kind}."):
        run(encode, lambda window: window[0].std(0).sum(), parts)


def test_a_value_that_differs_is_refused_and_one_that_does_not_is_passed_on() -> None:
    with raises(ShapeError, "an encoder with other rows", "float32 ['n', 2], 1.0", "], 2.0"):
        values = iter((1.0, 2.0, 3.0, 4.0))
        run(lambda z, x: (z, next(values)), lambda window: window[0].std(0).sum())
    seen = run(lambda z, x: (z, 0.5, "text", torch.float32, None), lambda window: window[0].std(0).sum())
    assert seen[0][1:] == (0.5, "text", torch.float32, None)
