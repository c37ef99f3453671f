"""Law 1. Any cut of a batch gives the gradient of the uncut batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.ways import EXACT, RETRYING, WRONG
from tests.reference import Way, assert_same, problem, received, whole_batch_gradient

TIME = 4


@st.composite
def cut_batches(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Valid tokens per sample, and samples per micro-batch: sizes 0 and 1, and empty samples, included."""
    cut = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
    valid = draw(st.lists(st.integers(0, TIME), min_size=sum(cut), max_size=sum(cut)).filter(any))
    return valid, cut


def update_by(way: Way, valid: list[int], cut: list[int]) -> tuple[list, list]:
    task = problem(valid, TIME)
    expected = whole_batch_gradient(task)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    with received(optimizer) as steps:
        way(task, optimizer, cut)
    assert len(steps) == 1
    return steps[0], expected


@pytest.mark.parametrize("way", EXACT, ids=lambda way: way.__name__)
@settings(max_examples=40)
@given(batch=cut_batches())
def test_any_cut_gives_the_gradient_of_the_whole_batch(way: Way, batch: tuple[list[int], list[int]]) -> None:
    assert_same(*update_by(way, *batch))


@pytest.mark.parametrize("way", RETRYING, ids=lambda way: way.__name__)
@settings(max_examples=20)  # each collects garbage before it replays
@given(batch=cut_batches())
def test_any_cut_that_memory_forces_does_so_too(way: Way, batch: tuple[list[int], list[int]]) -> None:
    assert_same(*update_by(way, *batch))


@pytest.mark.parametrize("way", WRONG, ids=lambda way: way.__name__)
def test_the_law_rejects(way: Way) -> None:
    with pytest.raises(AssertionError, match="off by"):
        assert_same(*update_by(way, [4, 4, 4, 1, 2, 3, 4], [3, 3, 1]))


@given(counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_counts_of_any_size_are_weighed_right(counts: list[int]) -> None:
    """One number per micro-batch, so that only the weights and the division are at work."""
    import gradgate as gg
    from tests.tensors import tensor

    weight = torch.nn.Parameter(tensor(0.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with received(optimizer) as steps, gg.Accumulator(optimizer).update() as update:
        for number, count in enumerate(update.micro_batches(counts), 1):
            update.backward(weight * number, count=count)
    expected = sum(number * count for number, count in enumerate(counts, 1)) / sum(counts)
    assert_same(steps[0], [tensor(expected)])
