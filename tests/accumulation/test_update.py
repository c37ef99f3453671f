"""An update's life: new, open, closed; and what is refused at the wrong moment."""

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import OwnerError, UpdateError
from tests.accumulation.one_weight import StopError, add, one_weight, stopped_by, update_by
from tests.messages import raises
from tests.tensors import DEVICE


def test_a_closed_update_leaves_nothing_to_the_garbage_collector() -> None:
    """Losses on a device would be held until the collector comes by."""
    weight, _, accumulator = one_weight()
    update_by(accumulator, weight, [(1.0, 1), (2.0, 3)])
    gc.collect()
    update_by(accumulator, weight, [(1.0, 1), (2.0, 3)])
    assert gc.collect() == 0


def test_micro_batches_do_not_outlive_their_block() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        left = update.micro_batches([1.0, 2.0, 3.0])
        update.backward(weight * next(left), count=1)
    with raises(UpdateError, "after the block", "micro_batches", "closed"):
        next(left)
    assert (weight.item(), update.micro_batch_count) == (-1.0, 1)


def test_a_loop_that_is_left_early_makes_the_update_of_what_was_added() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for gradient in update.micro_batches([2.0, 4.0, 100.0]):
            if gradient > 50:
                break
            update.backward(weight * gradient, count=1)
    assert (weight.item(), update.count) == (-3.0, 2)


def test_the_numbers_are_read_when_they_are_there() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for number, (gradient, count) in enumerate(update.micro_batches([(2.0, 3), (6.0, 1)]), 1):
            if number == 1:
                with raises(UpdateError, "a loss read too early"):
                    _ = update.loss
            update.backward(weight * gradient + number, count=count)
            assert update.micro_batch_count == number
        assert update.count == 4
        assert not update.stepped
        with raises(UpdateError, "a norm read too early", "open"):
            _ = update.grad_norm
    assert update.stepped
    assert (update.loss, update.count, update.grad_norm) == (1.25, 4, 3.0)


def test_a_step_by_hand_inside_the_block_is_refused_and_outside_it_is_not() -> None:
    weight, optimizer, accumulator = one_weight()
    with stopped_by(UpdateError), accumulator.update() as update:
        add(update, weight, [(1.0, 1)])
        optimizer.step()
    assert (weight.item(), weight.grad) == (0.0, None)
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    update_by(accumulator, weight, [(1.0, 1)])
    assert weight.item() == -2.0


def test_an_accumulator_that_is_gone_leaves_nothing_on_its_optimizer() -> None:
    _, optimizer, accumulator = one_weight()
    assert optimizer._optimizer_step_pre_hooks
    del accumulator
    gc.collect()
    assert not optimizer._optimizer_step_pre_hooks


def test_a_window_that_an_interrupt_left_open_can_be_given_up() -> None:
    weight, _, accumulator = one_weight()
    accumulator.discard()  # nothing to give up
    update = accumulator.update()
    update.__enter__()
    add(update, weight, [(1.0, 1)])
    with pytest.raises(OwnerError):
        accumulator.update().__enter__()
    accumulator.discard()
    assert (weight.item(), weight.grad) == (0.0, None)
    update_by(accumulator, weight, [(2.0, 1)])
    assert weight.item() == -2.0


def test_an_unfinished_window_that_was_loaded_can_be_given_up() -> None:
    weight, _, accumulator = one_weight()
    with stopped_by(StopError), accumulator.update() as update:
        add(update, weight, [(5.0, 1)])
        state = accumulator.state_dict()
        raise StopError
    accumulator.load_state_dict(state)
    accumulator.discard()
    assert accumulator.state_dict()["window"] is None
    update_by(accumulator, weight, [(2.0, 1)])
    assert weight.item() == -2.0


def test_a_step_by_hand_is_refused_while_the_update_of_a_lost_accumulator_is_open() -> None:
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with gg.Accumulator(optimizer).update() as update:
        gc.collect()
        update.backward(weight * 1.0, count=1)
        with raises(UpdateError, "a step inside"):
            optimizer.step()
    assert weight.item() == -1.0


def test_a_loop_within_autocast_sees_the_weights_of_the_last_step() -> None:
    """Autocast keeps the casts of weights until its outermost block ends."""
    weights = []
    for around in (True, False):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2, device=DEVICE)
        accumulator = gg.Accumulator(SGD(layer.parameters(), lr=0.5))
        with torch.autocast(DEVICE.type, torch.bfloat16) if around else nullcontext():
            for _ in range(3):
                with accumulator.update() as update, torch.autocast(DEVICE.type, torch.bfloat16):
                    for x in update.micro_batches(torch.ones(4, 3, device=DEVICE).split(2)):
                        update.backward(layer(x).float().square().mean(), count=len(x))
        weights.append(layer.weight.detach())
    assert torch.equal(*weights)
