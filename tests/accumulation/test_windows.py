"""Windows of a loader: nothing is dropped, nothing leaks into the next epoch."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

import gradgate as gg
from gradgate.errors import UpdateError
from tests.accumulation.one_weight import one_weight
from tests.messages import raises
from tests.tensors import arange


class Stream(IterableDataset[int]):
    """Says nothing of its length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@settings(max_examples=50)
@given(length=st.integers(0, 20), size=st.integers(1, 7), known=st.booleans(), read=st.integers(0, 7))
def test_every_item_comes_once_and_in_order_however_far_a_window_is_read(
    length: int, size: int, known: bool, read: int
) -> None:
    source: Any = list(range(length))
    seen = []
    for window in gg.windows(source if known else iter(source), size):
        for number, _ in enumerate(window):
            if number == read:
                break
        seen.append(list(window))
    assert [item for window in seen for item in window] == source
    assert all(len(window) == size for window in seen[:-1])
    assert len(seen) == -(-length // size)


def test_a_window_draws_from_the_loader_only_what_is_read() -> None:
    drawn = []

    def loader() -> Iterator[int]:
        for number in range(5):
            drawn.append(number)
            yield number

    windows = iter(gg.windows(loader(), 3))
    window = next(windows)
    assert drawn == [0]
    items = iter(window)
    assert [next(items), next(items)] == [0, 1]
    assert drawn == [0, 1]
    assert len(window) == 3
    assert drawn == [0, 1, 2]
    assert list(next(windows)) == [3, 4]


def test_a_window_is_a_sequence() -> None:
    (window,) = gg.windows(iter("abc"), 5)
    assert (window[0], window[-1], window[1:], len(window)) == ("a", "c", ["b", "c"], 3)
    assert "b" in window
    assert list(window) == list(window) == ["a", "b", "c"]
    with pytest.raises(IndexError):
        window[3]


@pytest.mark.parametrize(
    "loader", [iter([1, 2]), DataLoader(Stream())], ids=["generator", "iterable dataset"]
)
def test_what_has_no_length_has_windows_without_one(loader: Any) -> None:
    with pytest.raises(TypeError, match="has no l"):
        len(gg.windows(loader, 2))
    assert len(list(gg.windows(loader, 2))) in (1, 5)


def test_leaving_the_loop_early_leaks_nothing_into_the_next_epoch() -> None:
    windows = gg.windows([1, 2, 3, 4, 5], 2)
    for window in windows:
        for _ in window:
            break
        break
    assert [list(window) for window in windows] == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize("known", [True, False])
def test_what_is_expected_of_a_window_is_what_comes_or_the_size(known: bool) -> None:
    loader = [0] * 7
    windows = gg.windows(loader if known else (item for item in loader), 3)
    assert [window.expected for window in windows] == ([3, 3, 1] if known else [3, 3, 3])


def test_a_micro_batch_that_was_handed_out_is_let_go_of() -> None:
    weight, _, accumulator = one_weight()
    alive: list[weakref.ref[torch.Tensor]] = []

    def loader() -> Iterator[torch.Tensor]:
        for _ in range(6):
            x = arange(3)
            alive.append(weakref.ref(x))
            yield x

    most = 0
    for window in gg.windows(loader(), 6):
        with accumulator.update() as update:
            for x in update.micro_batches(window):
                update.backward((weight * x).mean())
                most = max(most, sum(one() is not None for one in alive))
        with raises(UpdateError, "a window drawn twice"):
            list(window)
    assert most <= 2  # this one, and at most the next
