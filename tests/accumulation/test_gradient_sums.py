"""Several losses with divisors of their own, and backward passes that fail."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg

# private: counts on a device are added when the window ends; there is no device here
from gradgate.accumulation._sums import total
from gradgate.errors import CountError, GradientError, UpdateError
from tests.accumulation.one_weight import StopError, one_weight, stopped_by, update_by
from tests.messages import raises
from tests.tensors import randn


def test_a_loss_may_come_in_some_micro_batches_only() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for labelled in update.micro_batches([True, False, True]):
            update.backward(weight * 1.0, count=5, name="all")
            if labelled:
                update.backward(weight * 10.0, count=2, name="labelled")
    assert weight.item() == -11.0


def test_of_a_module_that_a_loss_goes_into_what_is_owned_receives() -> None:
    model = nn.Linear(3, 1)
    bias = model.bias.detach().clone()
    before = model.weight.detach().clone()
    with gg.Accumulator(SGD([model.weight], lr=1.0)).update() as update:
        update.backward(model(torch.ones(8, 3)).square().mean(), into=model)
    assert not torch.equal(model.weight, before)
    assert model.bias.grad is None
    assert torch.equal(model.bias, bias)


# -- what else may happen to .grad inside the block ---------------------------------------------------


@pytest.mark.parametrize("then", ["goes on", "ends"])
@pytest.mark.parametrize("how", ["zero_grad", "clip", "a backward of its own", "in place"])
def test_gradients_that_are_changed_inside_the_block_are_noticed(how: str, then: str) -> None:
    weight, optimizer, accumulator = one_weight()
    with stopped_by(GradientError), accumulator.update() as update:
        for _ in update.micro_batches([0, 1]):
            update.backward(weight * 4.0, count=1)
            if how == "zero_grad":
                optimizer.zero_grad()
            elif how == "clip":
                torch.nn.utils.clip_grad_norm_([weight], 1.0)
            elif how == "in place":
                weight.grad /= 2
            else:
                (weight * 2).backward()
            if then == "ends":
                break
    assert (weight.item(), weight.grad) == (0.0, None)
    update_by(accumulator, weight, [(1.0, 1)])
    assert weight.item() == -1.0


# -- a backward that fails ---------------------------------------------------------------------------


class Failing(torch.autograd.Function):
    """The identity; its backward fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise StopError


def two_layers() -> tuple[nn.Linear, nn.Linear, gg.Accumulator]:
    first, last = (nn.Linear(2, 2, dtype=torch.float64) for _ in range(2))
    return first, last, gg.Accumulator(SGD([*first.parameters(), *last.parameters()], lr=0.1))


def test_a_backward_that_fails_half_way_and_is_caught_cannot_be_stepped_on() -> None:
    first, last, accumulator = two_layers()
    before = last.weight.detach().clone()
    x = randn(3, 2).double().cpu()
    with stopped_by(UpdateError), accumulator.update() as update:
        for fails in update.micro_batches([False, True, False]):
            hidden = first(x)
            loss = last(Failing.apply(hidden) if fails else hidden).mean()
            try:
                update.backward(loss)
            except StopError:
                assert last.weight.grad is not None  # it had got as far as there
    assert torch.equal(last.weight, before)
    assert last.weight.grad is None
    accumulator.step_window(lambda x: last(first(x)).mean(), [x])
    assert not torch.equal(last.weight, before)


def test_a_forward_that_fails_and_is_caught_is_a_micro_batch_left_out() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for gradient in update.micro_batches([1.0, None, 3.0]):
            with suppress(TypeError):
                update.backward(weight * gradient, count=1)
    assert (weight.item(), update.count, update.micro_batch_count) == (-2.0, 2, 3)


def test_a_call_that_is_refused_and_caught_leaves_the_sum_whole() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for count in update.micro_batches([1, -1, 3]):
            with suppress(CountError):
                update.backward(weight * 2.0, count=count)
    assert (weight.item(), update.count) == (-2.0, 4)


def test_a_torn_sum_cannot_be_saved() -> None:
    first, last, accumulator = two_layers()
    with accumulator.update() as update:
        with stopped_by(StopError):
            update.backward(last(Failing.apply(first(torch.ones(1, 2).double()))).mean())
        with raises(UpdateError, "an exception caught inside"):
            accumulator.state_dict()
        update.__exit__(StopError, StopError(), None)
    assert accumulator.state_dict()["window"] is None


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_later_windows_still_watch_both_ends_of_the_parameters(place: int) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)), torch.ones(3, 2)
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1))
    for _ in range(5):
        accumulator.step_window(lambda x: (model(x).square().mean(), len(x)), [x, x])
    with stopped_by(GradientError), accumulator.update() as update:
        for part in update.micro_batches([x, x]):
            update.backward(model(part).square().mean(), count=3)
            model[place].weight.square().sum().backward()
            model[place].bias.square().sum().backward()


def test_counts_on_a_device_are_added_without_rounding_whatever_their_types() -> None:
    counts = [torch.tensor(257), torch.tensor(256.0, dtype=torch.bfloat16), 1, torch.tensor(257)]
    assert total(counts) == 771
