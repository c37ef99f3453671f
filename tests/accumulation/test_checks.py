"""What must hold before a backward and before a window; and what is only warned of."""

import gc
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import DividedTwiceWarning, GraphError, OwnerError, ShapeError
from tests.accumulation.one_weight import StopError, add, one_weight, stopped_by, update_by
from tests.messages import raises, warns
from tests.silence import no_warning
from tests.tensors import ones, tensor, zeros


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        (3.0, ("a loss that is a number", "float")),
        (None, ("a loss that is a number", "NoneType")),
        (zeros(8), ("a vector", "[8]", "count=8")),
        (zeros(0), ("a vector", "[0]")),
        (torch.tensor(3), ("a loss of integers", "torch.int64")),
        (torch.tensor(3j), ("a loss of integers", "torch.complex64")),
    ],
    ids=["a number", "nothing", "a vector", "empty", "whole", "complex"],
)
def test_a_loss_is_a_floating_scalar(loss: object, cause: tuple[str, ...]) -> None:
    weight, _, accumulator = one_weight()
    with raises(ShapeError, *cause), accumulator.update() as update:
        update.backward(loss, count=1)  # type: ignore[arg-type]
    assert weight.grad is None


def test_a_loss_without_a_graph_is_an_error() -> None:
    weight, _, accumulator = one_weight()
    for loss in (weight.detach() * 2, tensor(1.0), tensor(1.0).exp()):
        with raises(GraphError, "no graph"):
            update_by(accumulator, loss, [(1.0, 1)])


def test_two_open_updates_cannot_own_one_parameter() -> None:
    weight, optimizer, accumulator = one_weight()
    other = gg.Accumulator(optimizer)
    with accumulator.update() as update:
        for second in (other, accumulator):
            with raises(OwnerError, "owned twice"):
                second.update().__enter__()
        add(update, weight, [(1.0, 1), (3.0, 1)])
    assert weight.item() == -2.0
    update_by(other, weight, [(1.0, 1)])
    assert weight.item() == -3.0


def test_open_updates_of_different_owners_do_not_mind_each_other() -> None:
    (a, _, first), (b, _, second) = one_weight(), one_weight()
    with first.update() as one, second.update() as two:
        for number in one.micro_batches([1, 3]):
            loss = a * number + b * number
            one.backward(loss, count=1, retain_graph=True)
            two.backward(loss, count=number, name="b")
    assert (a.item(), b.item()) == (-2.0, -2.5)


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


def test_two_means_over_two_micro_batches_are_not_mistaken_for_it() -> None:
    weight = nn.Parameter(ones(2))
    with no_warning(), gg.Accumulator(SGD([weight], lr=0.1)).update() as update:
        for _ in update.micro_batches([0, 1]):
            update.backward((weight.mean() + weight.exp().mean()) / 2, count=2)


def test_as_an_error_the_warning_stops_the_window() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DividedTwiceWarning)
        with pytest.raises(DividedTwiceWarning):
            divided(4)


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
