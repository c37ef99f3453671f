"""Errors in a window under fully_shard: nothing is stepped, and the model can train on."""

from typing import Any

import pytest
import torch
from torch import Tensor

import gradgate as gg
from gradgate.errors import GradientError, RankError, StateError
from tests.ranks.processes import together
from tests.ranks.test_sharded import sharded, whole
from tests.ranks.work import adam, data, model
from tests.reference import assert_same

pytestmark = pytest.mark.slow


def raising(rank: int) -> Any:
    net, (x, _) = sharded(2), data()
    accumulator = gg.Accumulator(adam(net), model=net)
    before = [one.detach().to_local().clone() for one in net.parameters()]  # type: ignore[operator]
    try:
        with accumulator.update() as update:
            for rows in update.micro_batches(x.split(12)):
                if rank and update.micro_batch_count == 2:
                    raise ZeroDivisionError
                update.backward(net(rows).square().mean(), count=12)
    except RankError as error:
        now = [one.detach().to_local() for one in net.parameters()]  # type: ignore[operator]
        return str(error), all(torch.equal(a, b) for a, b in zip(now, before, strict=True))
    return None


def test_a_rank_that_raises_in_the_middle_is_an_error_on_the_others_and_nothing_is_stepped() -> None:
    (said, unchanged), own = together(raising, 2)
    assert said.startswith("update: rank 0 of 2 waited for rank 1, without an answer")
    assert unchanged
    assert isinstance(own, ZeroDivisionError)


def begun_outside(rank: int) -> Any:
    """Run a backward pass that does not communicate, try to open a window, and finish the accumulation."""
    net, (x, _) = sharded(2), data()
    accumulator = gg.Accumulator(adam(net), model=net)
    net.set_requires_gradient_sync(False)  # type: ignore[operator]
    net(x[:8]).square().sum().backward()
    with pytest.raises(GradientError, match="fully_shard holds gradients"), accumulator.update():
        pass
    net.set_requires_gradient_sync(True)  # type: ignore[operator]
    net(x[8:]).square().sum().backward()
    return [one.grad.full_tensor() for one in net.parameters()]  # type: ignore[union-attr]


def test_gradients_that_a_window_refuses_stay_with_fully_shard() -> None:
    net, (x, _) = model(), data()
    net(x).square().sum().backward()
    for gradients in together(begun_outside, 2):
        assert_same(gradients, [one.grad for one in net.parameters()])


def raising_in_backward(rank: int) -> list[Tensor]:
    """The root has no parameters of its own, because each layer is under ``fully_shard``."""
    net, (x, _) = sharded(2), data()
    accumulator = gg.Accumulator(adam(net), model=net)

    def fail(_: Any, gradients: Any) -> None:
        raise ZeroDivisionError

    hook = net[1].register_full_backward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError), accumulator.update() as update:
        update.backward(net(x).square().mean(), count=len(x))
    hook.remove()
    for _ in range(2):
        with accumulator.update() as update:
            update.backward(net(x).square().mean(), count=len(x))
    return whole(net)


def test_a_backward_pass_that_raised_on_all_ranks_leaves_a_model_that_trains_on() -> None:
    net, (x, _) = model(), data()
    optimizer = adam(net)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    for values in together(raising_in_backward, 2):
        assert_same(values, [one.detach() for one in net.parameters()])


def saved_within_a_window(rank: int) -> bool:
    net, (x, _) = sharded(2), data()
    accumulator = gg.Accumulator(adam(net), model=net)
    with accumulator.update() as update:
        update.backward(net(x).square().mean(), count=len(x))
        with pytest.raises(StateError, match="state_dict: under fully_shard"):
            accumulator.state_dict()
    return update.stepped


def test_the_sum_of_an_unfinished_window_is_not_saved() -> None:
    assert together(saved_within_a_window, 2) == [True, True]
