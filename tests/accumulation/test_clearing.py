"""What becomes of gradients after a step, and of those that were there before."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import GraphError
from tests.accumulation.one_weight import StopError, one_weight, stopped_by, update_by
from tests.messages import raises
from tests.reference import received
from tests.tensors import RTOL, ones, tensor

CLEAR = ["none", "zero", gg.decay(0.5)]


@settings(max_examples=20)
@given(
    gradients=st.lists(st.floats(-100, 100), min_size=1, max_size=6),
    factor=st.floats(0, 0.99),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_under_decay_each_gradient_is_factor_times_the_last_plus_the_new_mean(
    gradients: list[float], factor: float, counts: list[int]
) -> None:
    weight, optimizer, accumulator = one_weight(clear=gg.decay(factor))
    expected = 0.0
    with received(optimizer) as steps:
        for number, gradient in enumerate(gradients):
            expected = factor * expected + gradient
            update = update_by(accumulator, weight, [(gradient, count) for count in counts])
            assert steps[number][0].item() == pytest.approx(expected, rel=RTOL, abs=100 * RTOL)
            assert update.grad_norm == pytest.approx(abs(expected), rel=RTOL, abs=100 * RTOL)
            assert weight.grad.item() == pytest.approx(factor * expected, rel=RTOL, abs=100 * RTOL)


class Threefold(SGD):
    """Changes the gradients, and leaves the step to its base class, whose hooks may run as well."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(3.0)
        super().step()


@pytest.mark.parametrize("others", [False, True])
def test_what_decays_is_what_a_subclass_received_whatever_optimizers_there_are(
    others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch makes a class run hooks when its first optimizer is created.
    monkeypatch.setattr(SGD, "step", inspect.unwrap(SGD.step))
    if others:
        SGD([nn.Parameter(torch.zeros(1))])
    weight = nn.Parameter(torch.zeros(1))
    accumulator = gg.Accumulator(Threefold([weight], lr=0.1), clear=gg.decay(0.5))
    norms = [update_by(accumulator, weight, [(8.0, 1), (8.0, 1)]).grad_norm for _ in range(3)]
    assert norms == [8.0, 12.0, 14.0]
    assert weight.grad.item() == 7.0


def test_what_decays_is_not_what_the_optimizer_writes_to_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = SGD(
        [weight], lr=0.1, momentum=0.5, nesterov=True, foreach=True
    )  # adds its momentum to `.grad`
    accumulator = gg.Accumulator(optimizer, clear=gg.decay(0.5))
    with received(optimizer) as steps:
        for _ in range(3):
            update_by(accumulator, weight, [(1.0, 1), (3.0, 1)])
    assert [step[0].item() for step in steps] == [2.0, 3.0, 3.5]


def test_what_decays_is_the_gradient_that_a_hook_of_the_optimizer_has_changed() -> None:
    weight, optimizer, accumulator = one_weight(clear=gg.decay(0.5))
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_([weight], 1.0))
    for gradient, carried in ((4.0, 0.5), (0.25, 0.375)):
        update_by(accumulator, weight, [(gradient, 1)])
        assert weight.grad.item() == carried


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_zero_keeps_the_same_tensors_over_updates(losses: int) -> None:
    a, b = nn.Parameter(ones(2)), nn.Parameter(ones(2))
    accumulator = gg.Accumulator(SGD([a, b], lr=0.1), clear="zero")
    seen = set()
    for _ in range(3):
        with accumulator.update() as update:
            for count in update.micro_batches([3, 1]):
                for _ in range(losses):
                    update.backward((a * b).sum(), count=count)
        seen.add((id(a.grad), id(b.grad)))
        assert not a.grad.any()
        assert not b.grad.any()
    assert len(seen) == 1


# -- windows whose losses reach nothing ----------------------------------------------------------------------------


def unreached(update: gg.Update, weight: Parameter, other: Tensor) -> None:
    update.backward(other * 2, count=1)


def unreached_twice(update: gg.Update, weight: Parameter, other: Tensor) -> None:
    for count in update.micro_batches([1, 0, 2]):
        update.backward(other * 2, count=count)
        update.backward(other * 3, count=2)


def unreached_beside_an_empty_micro_batch(update: gg.Update, weight: Parameter, other: Tensor) -> None:
    for loss, count in update.micro_batches([(weight * 5, 0), (other * 2, 1)]):
        update.backward(loss, count=count)


UNREACHED = [unreached, unreached_twice, unreached_beside_an_empty_micro_batch]


@pytest.mark.parametrize("lose", UNREACHED)
@pytest.mark.parametrize("clear", CLEAR)
@pytest.mark.parametrize("windows", [1, 4])  # every gradient is stamped in the first windows only
def test_a_window_whose_losses_reach_no_parameter_makes_no_step(
    windows: int, clear: Any, lose: Callable[..., None]
) -> None:
    weight, other = Parameter(tensor(0.0)), Parameter(tensor(1.0))
    accumulator = gg.Accumulator(SGD([weight], lr=1.0, momentum=0.5), clear=clear)
    for _ in range(windows):
        update_by(accumulator, weight, [(1.0, 1)])
    stood, gradient = weight.item(), weight.grad
    carried = None if gradient is None else gradient.item()
    with raises(GraphError, "not reached"), accumulator.update() as update:
        lose(update, weight, other)
    assert weight.item() == stood
    assert weight.grad is gradient
    assert gradient is None or gradient.item() == carried


@pytest.mark.parametrize("clear", CLEAR)
@pytest.mark.parametrize("order", [["weight", "other"], ["other", "weight"]])
def test_losses_of_which_one_reaches_a_parameter_step_on_it(order: list[str], clear: Any) -> None:
    weights = {"weight": Parameter(tensor(0.0)), "other": Parameter(tensor(1.0))}
    optimizer = SGD([weights["weight"]], lr=1.0)
    accumulator = gg.Accumulator(optimizer, clear=clear)
    with received(optimizer) as steps:
        for _ in range(2):
            with accumulator.update() as update:
                for name in order:
                    update.backward(weights[name] * 3, count=1, name=name)
    assert [step[0].item() for step in steps] == [
        3.0,
        4.5 if isinstance(clear, gg.accumulation.Decay) else 3.0,
    ]


@pytest.mark.parametrize("clear", CLEAR)
def test_a_window_whose_gradient_is_zero_makes_a_step(clear: Any) -> None:
    weight, _, accumulator = one_weight(clear=clear)
    for gradient in (1.0, 0.0):
        assert update_by(accumulator, weight, [(gradient, 1)]).stepped


class Foreign(SGD):
    """An optimizer of another library, which gets gradients of 16-bit parameters in 16 bits."""


@pytest.mark.parametrize("kind", [SGD, Foreign])
def test_zeros_of_a_16_bit_parameter_are_not_mistaken_for_a_gradient(kind: type[SGD]) -> None:
    weight, other = Parameter(torch.zeros((), dtype=torch.bfloat16)), Parameter(tensor(1.0))
    accumulator = gg.Accumulator(kind([weight], lr=1.0, momentum=0.5), clear="zero")
    update_by(accumulator, weight, [(1.0, 1)])
    with raises(GraphError, "not reached"):
        update_by(accumulator, other, [(1.0, 1)])
    assert weight.item() == -1.0


def test_zeros_of_a_loaded_window_are_not_mistaken_for_a_gradient() -> None:
    other, states = Parameter(tensor(1.0)), []
    weight, _, accumulator = one_weight(clear="zero")
    update_by(accumulator, weight, [(1.0, 1)])
    with stopped_by(StopError), accumulator.update() as update:
        for _ in update.micro_batches([1, 2]):
            update.backward(other * 1, count=1)
            states.append(accumulator.state_dict())
            raise StopError
    weight, _, accumulator = one_weight(clear="zero")
    accumulator.load_state_dict(states[0])
    with raises(GraphError, "not reached"):
        update_by(accumulator, other, [(1.0, 1), (1.0, 1)])
