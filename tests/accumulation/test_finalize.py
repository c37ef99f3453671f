"""The end of a window: divided, clipped, stepped, scheduled; or refused with nothing changed."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import gradgate as gg
from gradgate.errors import NonfiniteError, TornStepError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises
from tests.tensors import labels, tensor


def test_finite_gradients_whose_squares_overflow_are_finite() -> None:
    weight = nn.Parameter(torch.zeros(2))
    with gg.Accumulator(SGD([weight], lr=1.0), clip_norm=1.0).update() as update:
        update.backward((weight * 3e30).sum(), count=1)
    assert update.grad_norm == pytest.approx(3e30 * math.sqrt(2), rel=1e-5)
    assert weight.tolist() == pytest.approx([-math.sqrt(0.5)] * 2)


# -- gradients that are missing or not finite -------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_raises_by_default_and_says_where(value: float) -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    optimizer = SGD([("good", a), ("bad", b)], lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("stepped"))
    accumulator = gg.Accumulator(optimizer)
    with raises(NonfiniteError, "not finite", "1 of 2 parameters: 'bad'", "number 2"):
        accumulator.step_window(lambda factor: (a + b * factor + abs(factor), 1), [1.0, value])
    assert (a.item(), b.item(), a.grad, b.grad) == (0.0, 0.0, None, None)


@pytest.mark.parametrize("kind", ["sparse", "complex"])
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_gradients_of_every_kind_are_looked_at(kind: str, nonfinite: str) -> None:
    table = nn.Embedding(3, 2, sparse=True) if kind == "sparse" else nn.Linear(1, 2, dtype=torch.complex64)
    index = torch.tensor([1]) if kind == "sparse" else torch.ones(1, dtype=torch.complex64)
    accumulator = gg.Accumulator(SGD(table.parameters(), lr=1.0), model=table, nonfinite=nonfinite)
    before = table.weight.detach().clone()
    expected = pytest.raises(NonfiniteError, match="'weight'") if nonfinite == "raise" else nullcontext()
    with expected, accumulator.update() as update:
        update.backward(table(index).abs().sum() * float("inf"), count=1)
    assert torch.equal(table.weight, before)


def test_it_can_be_stepped_on_without_a_look() -> None:
    weight, _, accumulator = one_weight(nonfinite="step")
    update = update_by(accumulator, weight, [(math.nan, 1)])
    assert update.stepped
    assert math.isnan(weight.item())


# -- a step that fails -------------------------------------------------------------------------------------------


class Careless(Optimizer):
    """Writes behind autograd's back, as many optimizers do, and then fails."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0})

    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(1)
            raise ArithmeticError("half-way")


class AtOnce(SGD):
    def step(self, closure: None = None) -> None:
        raise ArithmeticError("at once")


def test_an_optimizer_that_writes_behind_autograds_back_is_said_to_be_torn() -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    with pytest.raises(TornStepError) as caught:
        update_by(gg.Accumulator(Careless([a, b])), a + b, [(1.0, 1)])
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_one_of_torchs_own_that_fails_before_it_changes_anything_raises_as_it_is() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    accumulator = gg.Accumulator(Adam(embedding.parameters()))
    with pytest.raises(RuntimeError, match="Adam does not support sparse gradients") as caught:
        accumulator.step_window(lambda rows: embedding(rows).sum(1).mean(), [labels([1, 2]).cpu()])
    assert not isinstance(caught.value, TornStepError)
    assert embedding.weight.grad is None


def test_the_second_optimizers_failure_leaves_the_first_one_stepped_and_says_so() -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    optimizers = [SGD([("first", a)], lr=1.0), AtOnce([b], lr=1.0)]
    with raises(TornStepError, "torn step", "1 of 2 parameters ('first')"):
        update_by(gg.Accumulator(optimizers), a + b, [(1.0, 1)])
    accumulator = gg.Accumulator(optimizers, undo_step=True)
    with pytest.raises(ArithmeticError, match="at once"):
        update_by(accumulator, a + b, [(1.0, 1)])
    assert a.item() == -1.0  # of the first, torn update; the second one was undone


def test_a_fused_step_that_fails_half_way_is_torn_though_no_version_tells() -> None:
    """torch's fused kernels do not count their writes."""
    dense, embedding = nn.Parameter(torch.zeros(2)), nn.Embedding(4, 2, sparse=True)
    optimizer = SGD([{"params": [dense]}, {"params": [embedding.weight]}], lr=1.0, fused=True)
    accumulator = gg.Accumulator(optimizer)
    with pytest.raises(TornStepError):
        accumulator.step_window(lambda rows: (embedding(rows) + dense).sum(1).mean(), [torch.tensor([1, 2])])
    assert dense.tolist() == [-1.0, -1.0]
