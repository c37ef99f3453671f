"""What must hold before a backward and before a window; and what is only warned of."""

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import DividedTwiceWarning
from tests.accumulation.one_weight import StopError, one_weight, stopped_by, update_by
from tests.messages import warns
from tests.silence import no_warning
from tests.tensors import ones, tensor, zeros


def test_an_update_that_is_entered_and_forgotten_gives_up_its_claim() -> None:
    weight, _, accumulator = one_weight()
    forgotten = one_weight()[2].update()
    forgotten.__enter__()
    with stopped_by(StopError), accumulator.update():
        raise StopError
    update_by(accumulator, weight, [(1.0, 1)])
    del forgotten
    gc.collect()
    assert weight.item() == -1.0


# -- what is warned of ------------------------------------------------------------------------------------


def divided(by: float, micro_batches: int = 4, **options: object) -> None:
    model = nn.Linear(3, 1)
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]
    with accumulator.update() as update:
        for x in update.micro_batches([torch.ones(2, 3)] * micro_batches):
            update.backward(model(x).pow(2).mean() / by, count=2)


def test_a_loss_divided_by_the_number_of_micro_batches_is_warned_of_once_per_update() -> None:
    with warns(DividedTwiceWarning, "a loss divided by the micro-batches", "divided by 4") as said:
        divided(4)
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize(("by", "micro_batches"), [(3, 4), (0.25, 4), (1, 1), (1, 4)])
def test_a_loss_divided_by_anything_else_is_not(by: float, micro_batches: int) -> None:
    with no_warning():
        divided(by, micro_batches)


def summed(micro_batches: int, divisor: float, **options: Any) -> None:
    layer = nn.Linear(3, 2).to(zeros(1))
    with gg.Accumulator(SGD(layer.parameters(), lr=0.1)).update() as update:
        for x in update.micro_batches([ones(4, 3)] * micro_batches):
            loss = F.cross_entropy(
                layer(x), torch.zeros(len(x), dtype=torch.long), reduction="sum", **options
            )
            update.backward(loss / divisor, count=4)


def test_a_sum_divided_by_the_items_of_the_whole_window_is_warned_of_once_per_update() -> None:
    with warns(
        DividedTwiceWarning, "a sum divided by all items of the window", "over 4 items", "by 12"
    ) as said:
        summed(3, 12)
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize(
    ("micro_batches", "divisor", "options"),
    [(3, 4, {}), (3, 2, {}), (1, 12, {}), (3, 12, {"weight": tensor([3.0, 3.0])})],
    ids=["a mean", "a sum over tokens, by samples", "a single micro-batch", "the sum of the weights"],
)
def test_a_sum_divided_by_its_own_items_or_their_weights_is_not(
    micro_batches: int, divisor: float, options: dict[str, Any]
) -> None:
    with no_warning():
        summed(micro_batches, divisor, **options)
