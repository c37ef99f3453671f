"""The end of a window: divided, clipped, stepped, scheduled; or refused with nothing changed."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam
from torch.optim.lr_scheduler import ExponentialLR, SequentialLR

import gradgate as gg
from gradgate.errors import NonfiniteError, TornStepError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises
from tests.reference import assert_same, received
from tests.tensors import DEVICE, labels, tensor, zeros

CUT, VALID = [3, 0, 1, 2], [4, 1, 3, 2, 4, 4]


def test_clip_value_is_torchs_on_the_whole_batch() -> None:
    weight = nn.Parameter(zeros(4))
    optimizer = SGD([weight], lr=1.0)
    with gg.Accumulator(optimizer, clip_value=2.0).update() as update:
        for gradient, count in update.micro_batches(
            [([9.0, -9.0, 1.0, 0.0], 1), ([3.0, -1.0, 1.0, -3.0], 3)]
        ):
            update.backward((weight * tensor(gradient)).sum(), count=count)
    assert weight.tolist() == [-2.0, 2.0, -1.0, 2.0]  # minus the means 4.5, -3, 1 and -2.25, clipped


def test_finite_gradients_whose_squares_overflow_are_finite() -> None:
    weight = nn.Parameter(torch.zeros(2))
    with gg.Accumulator(SGD([weight], lr=1.0), clip_norm=1.0).update() as update:
        update.backward((weight * 3e30).sum(), count=1)
    assert update.grad_norm == pytest.approx(3e30 * math.sqrt(2), rel=1e-5)
    assert weight.tolist() == pytest.approx([-math.sqrt(0.5)] * 2)


# -- who steps, and who is only asked to ----------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [False, True])
def test_an_optimizer_whose_parameters_a_window_does_not_reach_is_no_trouble(scaled: bool) -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    optimizers = [SGD([a], lr=1.0), SGD([b], lr=1.0)]
    scaler = torch.amp.GradScaler(DEVICE.type) if scaled else None
    accumulator = gg.Accumulator(optimizers, scaler=scaler)
    for reached in (a, b):
        update_by(accumulator, reached, [(1.0, 2), (5.0, 6)])
    assert (a.item(), b.item()) == (-4.0, -4.0)


def test_schedulers_that_chain_others_step_once() -> None:
    weight, optimizer, _ = one_weight()
    warm, then = gg.warmup(optimizer, updates=2, factor=4.0), ExponentialLR(optimizer, 0.5)
    schedule = SequentialLR(optimizer, [warm, then], milestones=[2])
    accumulator = gg.Accumulator(optimizer, scheduler=schedule)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        update_by(accumulator, weight, [(1.0, 1), (1.0, 2)])
    assert rates == [0.25, 0.625, 1.0, 0.5]


# -- sparse -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("clear", ["none", "zero", gg.decay(0.5)])
@pytest.mark.parametrize("kind", [SGD, SparseAdam])
def test_a_sparse_embedding_moves_as_a_dense_one_on_the_whole_batch(
    kind: type, clear: Any, clip_norm: float | None
) -> None:
    def embedding(sparse: bool) -> nn.Embedding:
        torch.manual_seed(0)
        return nn.Embedding(5, 3, sparse=sparse, device=DEVICE, dtype=torch.float64)

    ours, whole = embedding(True), embedding(True)
    rows = labels([0, 1, 1, 4, 1])
    our_optimizer, their_optimizer = kind(ours.parameters(), lr=0.1), kind(whole.parameters(), lr=0.1)
    accumulator = gg.Accumulator(our_optimizer, clear=clear, clip_norm=clip_norm)
    with received(our_optimizer) as steps, accumulator.update() as update:
        for part in update.micro_batches(rows.split([3, 2])):
            update.backward(ours(part).pow(2).sum(1).mean())
    whole(rows).pow(2).sum(1).mean().backward()
    dense = whole.weight.grad.to_dense()
    if clip_norm is not None:
        dense *= clip_norm / (dense.norm() + 1e-6)
    assert steps[0][0].is_sparse
    assert_same([steps[0][0].to_dense()], [dense])
    whole.weight.grad = dense.to_sparse(1)
    their_optimizer.step()
    assert_same([ours.weight.detach()], [whole.weight.detach()])
    for _ in range(2):
        with accumulator.update() as update:
            update.backward(ours(rows).sum(1).mean())


# -- gradients that are missing or not finite -------------------------------------------------------------------


@pytest.mark.parametrize("clear", ["none", "zero", gg.decay(0.5)])
def test_losses_may_reach_different_parameters_and_one_may_be_empty(clear: Any) -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    accumulator = gg.Accumulator(SGD([a, b], lr=1.0), clear=clear)
    with accumulator.update() as update:
        for count in update.micro_batches([1, 3]):
            update.backward(a * count, count=count, name="a")
            update.backward(b * count, count=2, name="b")
            update.backward(a * 100, count=0, name="never")
    assert (a.item(), b.item()) == (-2.5, -2.0)
    with accumulator.update() as update:
        for _ in update.micro_batches([0, 1]):
            update.backward(a * 1, count=0, name="a")
            update.backward(b * 4, count=1, name="b")
    carried = isinstance(clear, gg.accumulation.Decay)
    assert (a.item(), b.item()) == ((-3.75, -7.0) if carried else (-2.5, -6.0))


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


@pytest.mark.parametrize("clear", ["none", "zero"])
def test_it_can_be_skipped(clear: Any) -> None:
    weight, optimizer, _ = one_weight()
    scheduler = ExponentialLR(optimizer, 0.5)
    accumulator = gg.Accumulator(optimizer, nonfinite="skip", clear=clear, scheduler=scheduler)
    update = update_by(accumulator, weight, [(1.0, 1), (math.nan, 1)])
    assert not update.stepped
    assert math.isnan(update.grad_norm)
    assert (weight.item(), scheduler.last_epoch) == (0.0, 0)
    assert update_by(accumulator, weight, [(1.0, 1)]).stepped
    assert weight.item() == -1.0


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
