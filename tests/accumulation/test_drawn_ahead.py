"""Micro-batches that are drawn before the backward of the one before: by list(...), by a prefetcher."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from torch import Tensor

import gradgate as gg
from gradgate.errors import UpdateError
from tests.accumulation.one_weight import one_weight

WINDOW = [(2.0, 3), (5.0, 1), (8.0, 4)]
MEAN = (2.0 * 3 + 5.0 + 8.0 * 4) / 8


def one_ahead(source: Iterable[Any]) -> Iterator[Any]:
    """Draw the next item before the current one is used, as a prefetcher to a device does."""
    source = iter(source)
    following = list(zip(range(1), source, strict=False))
    while following:
        (_, current), following = following[0], list(zip(range(1), source, strict=False))
        yield current


def add(
    update: gg.Update,
    weight: Tensor,
    drawn: Iterable[tuple[float, int]],
    then: Callable[[], object] = lambda: None,
    name: str | None = "loss",
) -> None:
    for gradient, count in drawn:
        update.backward(weight * gradient, count=count, name=name)
        then()


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("draw", [list, one_ahead])
def test_micro_batches_drawn_ahead_are_not_taken_for_several_losses(
    draw: Callable[[Iterable[Any]], Iterable[Any]], length: int
) -> None:
    weight, _, accumulator = one_weight()
    with pytest.raises(UpdateError, match=r"backward: .* drew them early"), accumulator.update() as update:
        add(update, weight, draw(update.micro_batches(WINDOW[:length])), name=None)
    assert weight.item() == 0.0


@pytest.mark.parametrize("name", [None, "loss"])
def test_a_prefetcher_may_wrap_the_window_and_with_a_name_the_iterator_too(name: str | None) -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        drawn = update.micro_batches(one_ahead(WINDOW))
        add(update, weight, drawn if name is None else one_ahead(drawn), name=name)
    assert weight.item() == pytest.approx(-MEAN)


def test_a_micro_batch_may_be_left_out() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for number, (gradient, count) in enumerate(update.micro_batches([*WINDOW, *WINDOW])):
            if number not in (0, 4):
                update.backward(weight * gradient, count=count)
    assert weight.item() == pytest.approx(-(5.0 + 8.0 * 4 + 2.0 * 3 + 8.0 * 4) / 12)


def test_a_window_is_not_saved_while_it_is_unclear_what_its_sum_holds() -> None:
    weight, _, accumulator = one_weight()
    with pytest.raises(UpdateError, match=r"state_dict: .* drew them early"), accumulator.update() as update:
        add(update, weight, one_ahead(update.micro_batches(WINDOW)), accumulator.state_dict)
    assert weight.item() == 0.0
