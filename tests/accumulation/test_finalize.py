"""The end of a window: divided, clipped, stepped, scheduled; or refused with nothing changed."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam
from torch.optim.lr_scheduler import ExponentialLR, SequentialLR, StepLR

import gradgate as gg
from gradgate.errors import GraphError, NonfiniteError, OwnerError, TornStepError
from tests.accumulation.one_weight import one_weight, update_by
from tests.messages import raises
from tests.reference import assert_same, parts, problem, received, whole_batch_gradient
from tests.tensors import DEVICE, RTOL, labels, tensor, zeros

CUT, VALID = [3, 0, 1, 2], [4, 1, 3, 2, 4, 4]


def clipped_by_torch(clip_norm: float) -> tuple[list[torch.Tensor], float]:
    task = problem(VALID)
    for parameter, gradient in zip(task.model.parameters(), whole_batch_gradient(task), strict=True):
        parameter.grad = gradient
    norm = torch.nn.utils.clip_grad_norm_(task.model.parameters(), clip_norm)
    return [parameter.grad for parameter in task.model.parameters()], float(norm)


@pytest.mark.parametrize("clip_norm", [1e-3, 0.5, 1e3])
def test_clip_norm_is_torchs_on_the_whole_batch(clip_norm: float) -> None:
    expected, norm = clipped_by_torch(clip_norm)
    task = problem(VALID)
    optimizer = SGD(task.model.parameters(), lr=0.1)
    with received(optimizer) as steps, gg.Accumulator(optimizer, clip_norm=clip_norm).update() as update:
        for x, y in update.micro_batches(parts(task, CUT)):
            update.backward(task.loss_mean(x, y), count=task.count(y))
    assert_same(steps[0], expected)
    assert update.grad_norm == pytest.approx(norm, rel=RTOL)  # before the clip


def test_clip_value_is_torchs_on_the_whole_batch() -> None:
    weight = nn.Parameter(zeros(4))
    optimizer = SGD([weight], lr=1.0)
    with gg.Accumulator(optimizer, clip_value=2.0).update() as update:
        for gradient, count in update.micro_batches(
            [([9.0, -9.0, 1.0, 0.0], 1), ([3.0, -1.0, 1.0, -3.0], 3)]
        ):
            update.backward((weight * tensor(gradient)).sum(), count=count)
    assert weight.tolist() == [-2.0, 2.0, -1.0, 2.0]  # minus the means 4.5, -3, 1 and -2.25, clipped


@pytest.mark.parametrize(("size", "dtype"), [(2e30, torch.float32), (1e160, torch.float64)])
def test_the_norm_of_finite_gradients_is_finite(size: float, dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=dtype, device=DEVICE))
    with gg.Accumulator(SGD([weight], lr=1e-160)).update() as update:
        update.backward((weight * size).sum(), count=1)
    assert update.stepped
    assert update.grad_norm == pytest.approx(2 * size)


def test_a_gradient_of_zero_is_stepped_on_and_has_norm_zero() -> None:
    weight, _, accumulator = one_weight(clip_norm=1.0)
    update = update_by(accumulator, weight, [(0.0, 2)])
    assert update.stepped
    assert update.grad_norm == 0.0
    assert weight.item() == 0.0


def test_finite_gradients_whose_squares_overflow_are_finite() -> None:
    weight = nn.Parameter(torch.zeros(2))
    with gg.Accumulator(SGD([weight], lr=1.0), clip_norm=1.0).update() as update:
        update.backward((weight * 3e30).sum(), count=1)
    assert update.grad_norm == pytest.approx(3e30 * math.sqrt(2), rel=1e-5)
    assert weight.tolist() == pytest.approx([-math.sqrt(0.5)] * 2)


# -- who steps, and who is only asked to ----------------------------------------------------------------------


def test_several_optimizers_and_schedulers_step_together() -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    optimizers = [SGD([a], lr=1.0), Adam([b], lr=1.0)]
    schedulers = [ExponentialLR(optimizers[0], 0.5), StepLR(optimizers[1], 1, 0.1)]
    accumulator = gg.Accumulator(optimizers, scheduler=schedulers)
    with accumulator.update() as update:
        for gradient, count in update.micro_batches([(2.0, 3), (6.0, 1)]):
            update.backward((a + b) * gradient, count=count)
    assert (a.item(), update.grad_norm) == (-3.0, pytest.approx(math.sqrt(18)))
    assert b.item() == pytest.approx(-1.0)
    assert [one.get_last_lr() for one in schedulers] == [[0.5], [0.1]]


@pytest.mark.parametrize("scaled", [False, True])
def test_an_optimizer_whose_parameters_a_window_does_not_reach_is_no_trouble(scaled: bool) -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    optimizers = [SGD([a], lr=1.0), SGD([b], lr=1.0)]
    scaler = torch.amp.GradScaler(DEVICE.type) if scaled else None
    accumulator = gg.Accumulator(optimizers, scaler=scaler)
    for reached in (a, b):
        update_by(accumulator, reached, [(1.0, 2), (5.0, 6)])
    assert (a.item(), b.item()) == (-4.0, -4.0)


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    accumulator = gg.Accumulator([SGD([a, b], lr=1.0), SGD([b], lr=1.0)])
    with raises(OwnerError, "a parameter of two optimizers"):
        accumulator.update().__enter__()
    with gg.Accumulator(SGD([a], lr=1.0)).update() as update:  # nothing stays claimed
        update.backward(a + b, count=1)


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


def test_the_rate_of_an_update_is_the_one_before_its_schedule() -> None:
    weight, optimizer, _ = one_weight()
    accumulator = gg.Accumulator(optimizer, scheduler=ExponentialLR(optimizer, 0.5))
    for expected in (-1.0, -1.5, -1.75):
        update_by(accumulator, weight, [(1.0, 1)])
        assert weight.item() == expected


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


def test_a_window_that_reaches_nothing_owned_is_an_error() -> None:
    weight, _, accumulator = one_weight()
    other = tensor(1.0).requires_grad_()
    for window in ([(1.0, 1)], [(1.0, 1), (1.0, 100)]):
        with raises(GraphError, "not reached"):
            update_by(accumulator, other, window)
    assert other.grad is None
    assert weight.grad is None


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


def test_undo_step_puts_that_back_too() -> None:
    a, b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    with pytest.raises(ArithmeticError, match="half-way"):
        update_by(gg.Accumulator(Careless([a, b]), undo_step=True), a + b, [(1.0, 1)])
    assert a.item() == 0.0


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
