"""What an accumulator's first losses show of a script's mistakes."""

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import gradgate as gg
from gradgate.errors import CountWarning, GraphError
from tests.accumulation.one_weight import one_weight
from tests.tensors import labels, ones, randn

IGNORED = -100


def counted(targets: Iterable[list[int]], counts: Iterable[object], windows: int = 1) -> gg.Update:
    weight, _, accumulator = one_weight()
    for _ in range(windows):
        with accumulator.update() as update:
            for y, count in update.micro_batches(list(zip(targets, counts, strict=True))):
                update.backward(cross_entropy(weight * randn(len(y), 2), labels(y)), count=count)  # type: ignore[arg-type]
    return update


def test_counts_out_of_proportion_to_what_the_losses_know_are_warned_of_once() -> None:
    """Sequences counted with their padding: 4 and 4, where 4 and 1 took part."""
    with pytest.warns(CountWarning, match="count is 4, but this loss is a mean over 1 items") as said:
        counted([[0, 1, 0, 1], [0, IGNORED, IGNORED, IGNORED]], [4, 4], windows=3)
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize(
    ("targets", "counts"),
    [
        ([[0, 1, 0, 1], [0, IGNORED, 1, IGNORED]], [4, 2]),
        ([[0, 1, 0, 1], [0, IGNORED, 1, IGNORED]], [40, 20]),  # in proportion: sequences of ten, say
        ([[0, 1], [IGNORED, IGNORED], [1, 0]], [2, 0, 2]),
        ([[0, 1, 0, 1], [0, IGNORED, 1, IGNORED]], [None, None]),
    ],
    ids=["right", "in proportion", "one empty", "left out"],
)
def test_counts_in_proportion_are_not(targets: list[list[int]], counts: list[object]) -> None:
    counted(targets, counts)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(2, 2), nn.Linear(2, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


def test_a_checkpoint_that_hides_its_parameters_is_refused_and_one_that_does_not_is_exact() -> None:
    x = torch.randn(4, 2)
    model = Checkpointed(reentrant=True)
    with pytest.raises(GraphError, match="a reentrant checkpoint, which hides its parameters from autograd"):
        gg.Accumulator(SGD(model.parameters(), lr=1.0)).step_window(lambda x: model(x).mean(), [x])
    assert model.first.weight.grad is None
    model = Checkpointed(reentrant=False)
    before = model.inner.weight.detach().clone()
    expected = torch.autograd.grad(model(x).mean(), [model.inner.weight])[0]
    gg.Accumulator(SGD(model.parameters(), lr=1.0)).step_window(lambda x: model(x).mean(), x.split([3, 1]))
    torch.testing.assert_close(before - model.inner.weight, expected)


def test_a_sum_and_a_mean_are_not_compared() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for y in update.micro_batches([labels([0, 1]), labels([0])]):
            loss = cross_entropy(weight * ones(len(y), 2), y, reduction="sum")
            update.backward(loss, count=len(y), reduction="sum")
    assert update.count == 3
