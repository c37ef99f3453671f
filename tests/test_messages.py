"""What errors say, as whole texts: where, what was found, why it cannot go on, what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import gradgate as gg
from gradgate import errors
from tests.accumulation.one_weight import StopError, add, one_weight, update_by
from tests.tensors import zeros


def named(**options: Any) -> tuple[nn.Parameter, SGD, gg.Accumulator]:
    """A weight whose name the optimizer knows."""
    weight = nn.Parameter(torch.tensor(0.0))
    optimizer = SGD([("weight", weight)], lr=1.0)
    return weight, optimizer, gg.Accumulator(optimizer, **options)


def with_model() -> gg.Accumulator:
    model = nn.Linear(1, 1)
    return gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model)


def missing_count() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight.exp() * 2)


def missing_count_of_a_sum() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight.exp().sum(), reduction="sum")


def no_items() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight, [(1.0, 0), (1.0, 0)])


def nothing_at_all() -> None:
    named()[2].update().__enter__().__exit__(None, None, None)


def a_vector() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight * zeros(8).cpu(), count=8)


def a_sum_called_a_mean() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(
            nn.functional.mse_loss(weight * torch.ones(3), torch.ones(3), reduction="sum"), count=3
        )


def no_graph() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight.detach(), [(1.0, 1)])


def not_reached() -> None:
    _, _, accumulator = named()
    update_by(accumulator, torch.ones((), requires_grad=True), [(1.0, 1)])


def frozen() -> None:
    weight, _, accumulator = named()
    weight.requires_grad_(False)
    update_by(accumulator, torch.ones((), requires_grad=True), [(1.0, 1)])


def a_users_gradient() -> None:
    weight, _, accumulator = named()
    weight.grad = torch.ones(())
    update_by(accumulator, weight, [(1.0, 1)])


def owned_twice() -> None:
    _, optimizer, accumulator = named()
    with accumulator.update():
        gg.Accumulator(optimizer).update().__enter__()


def another_micro_batch_or_another_loss() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight * 1, count=1)
        update.backward(weight * 1, count=1)


def after_the_block() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight, [(1.0, 1)]).backward(weight * 1, count=1)


def not_finite() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight, [(1.0, 1), (float("inf"), 1)])


def does_not_fit() -> None:
    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore lines.")

    with_model().step(loss_fn, torch.ones(4))


def cannot_be_cut() -> None:
    def loss_fn(x: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with_model().step(loss_fn, {"x": torch.ones(4), "lengths": [1, 2, 3]})


def no_model() -> None:
    def loss_fn(x: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    named()[2].step(loss_fn, torch.ones(4))


def a_window_as_a_batch() -> None:
    named()[2].step(
        lambda _: torch.ones(()), [(torch.ones(4), torch.ones(4, 2)), (torch.ones(3), torch.ones(3, 2))]
    )


def a_batch_as_a_window() -> None:
    named()[2].step_window(lambda _: torch.ones(()), (torch.ones(4, 2), torch.ones(4)))


def torn_step() -> None:
    class HalfWay(SGD):
        def step(self, closure: None = None) -> None:
            super().step()
            raise StopError

    weight = nn.Parameter(torch.tensor(0.0))
    update_by(gg.Accumulator(HalfWay([("weight", weight)], lr=1.0)), weight, [(1.0, 1)])


def closure() -> None:
    gg.Accumulator(LBFGS([nn.Parameter(zeros(1))]))


def plateau() -> None:
    _, optimizer, _ = named()
    gg.Accumulator(optimizer, scheduler=ReduceLROnPlateau(optimizer))


def two_clips() -> None:
    named(clip_norm=1.0, clip_value=0.5)


def scale_moved() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    weight, _, accumulator = named(scaler=scaler)
    with accumulator.update() as update:
        add(update, weight, [(1.0, 1)])
        scaler.update(new_scale=512.0)


def other_parameters() -> None:
    state = one_weight()[2].state_dict()
    gg.Accumulator(SGD([nn.Parameter(zeros(2))])).load_state_dict(state)


def rate_already_scheduled() -> None:
    _, optimizer, _ = named()
    StepLR(optimizer, 1)
    gg.scale_lr(optimizer, batch=512, base_batch=256)


TEXTS: list[tuple[Callable[[], None], type[BaseException], str]] = [
    (
        missing_count,
        errors.CountError,
        "backward: count is missing, and the loss's graph does not prove it: the loss ends in MulBackward0, "
        "which is not known to be a mean over items. Micro-batches are weighted by their counts, so a guess "
        "would give a wrong update. Pass the number of items in this loss: count=len(y) for samples, "
        "count=y.numel() for elements, count=mask.sum() for the valid ones.",
    ),
    (
        missing_count_of_a_sum,
        errors.CountError,
        "backward: count is missing, and a sum does not show its number of items. Micro-batches are weighted "
        "by their counts, so a guess would give a wrong update. Pass the number of items in this loss: "
        "count=len(y) for samples, count=y.numel() for elements, count=mask.sum() for the valid ones.",
    ),
    (
        no_items,
        errors.CountError,
        "update: all micro-batches of this window (2) have count 0, so the mean gradient is 0/0. Skip this "
        "update: do not enter the block for a window without items.",
    ),
    (
        nothing_at_all,
        errors.CountError,
        "update: no backward was called in this window, so there is nothing to step on. Call "
        "update.backward(loss, count=...) inside the block, or do not enter it.",
    ),
    (
        a_vector,
        errors.ShapeError,
        "backward: loss has shape [8], but it must be a scalar. Pass loss.mean() and count=8, or loss.sum() "
        "with reduction='sum'.",
    ),
    (
        a_sum_called_a_mean,
        errors.CountError,
        "backward: loss is a sum (MseLossBackward0), but reduction is 'mean', so its gradient would be count times "
        "too large. Pass reduction='sum'.",
    ),
    (
        no_graph,
        errors.GraphError,
        "backward: loss has no graph: it was computed under no_grad, from .item() or .detach(), or only from "
        "frozen parameters. Compute it from the parameters with gradients enabled.",
    ),
    (
        not_reached,
        errors.GraphError,
        "update: none of the 1 parameters that the optimizer owns received a gradient: 'weight'. The losses do "
        "not depend on them (they are detached, frozen, or from another model). Check that the optimizer was "
        "made from this model's parameters.",
    ),
    (
        frozen,
        errors.GraphError,
        "backward: every parameter that the optimizer owns is frozen (requires_grad is False), so nothing can be "
        "updated. Unfreeze a parameter, or leave this update out.",
    ),
    (
        a_users_gradient,
        errors.GradientError,
        "update: 1 of 1 parameters already hold a gradient that this accumulator did not make: 'weight'. "
        "Adding to it would mix two updates. Call optimizer.zero_grad() before the block, or run that "
        "backward through update.backward(...).",
    ),
    (
        owned_twice,
        errors.OwnerError,
        "update: 1 parameters are owned by another update that is still open: 'weight'. Their gradients would "
        "mix. Leave the other block first, or give each parameter one optimizer. If an interrupt left a "
        "window open, call accumulator.discard().",
    ),
    (
        another_micro_batch_or_another_loss,
        errors.UpdateError,
        "backward: a second call without a name, outside update.micro_batches(...): is it another micro-batch "
        "(the mean is over both) or another loss (the two means add)? Loop over `update.micro_batches(window)`, "
        "or name each loss: name='fake'.",
    ),
    (
        after_the_block,
        errors.UpdateError,
        "backward: this update is closed, not open. Use it inside `with accumulator.update() as update:`.",
    ),
    (
        not_finite,
        errors.NonfiniteError,
        "update: the gradient of this window is not finite in 1 of 1 parameters: 'weight'. Losses that are "
        "not finite: number 2. Nothing was stepped. Lower the learning rate or clip, or pass "
        "nonfinite='skip' to leave such windows out.",
    ),
    (
        does_not_fit,
        errors.BudgetError,
        "step: one sample alone runs out of memory (CUDA out of memory. Tried to allocate 20.00 MiB.). A batch "
        "cannot be split below one sample: shorten it, recompute activations (torch.utils.checkpoint), or free "
        "memory elsewhere. Nothing was stepped.",
    ),
    (
        cannot_be_cut,
        errors.BudgetError,
        "step: memory ran out (CUDA out of memory.), and this micro-batch cannot be split: cannot tell "
        'which part of batch["lengths"] belongs to which sample: it has 3 entries, and batch["x"] holds 4 '
        'samples. If all samples share it, pass batch_dim={"lengths": None}. For any other layout pass a '
        "list of samples, and collate=. Or pass smaller micro-batches. Nothing was stepped.",
    ),
    (
        no_model,
        errors.BudgetError,
        "step: memory ran out (CUDA out of memory.), and without the whole model the window cannot be replayed in"
        " smaller micro-batches: what the forward pass has changed in it (batch norms, momentum encoders, "
        "counters) could not be restored. Pass all modules that the optimizers step: Accumulator(optimizer, "
        "model=model). Nothing was stepped.",
    ),
    (
        a_window_as_a_batch,
        errors.OptionError,
        "step: batch is one batch, and this list of 2 looks like several: its entries are all of one kind. Pass "
        "micro-batches to accumulator.step_window(loss_fn, window), uncollated samples with collate=. If they are "
        "the fields of one batch, say so: batch_dim=0.",
    ),
    (
        a_batch_as_a_window,
        errors.OptionError,
        "step_window: a window is a sequence of micro-batches, but these tensors look like the fields of one "
        "batch: the same number of samples in each, but of different kinds. Pass a list, [batch], or call "
        "accumulator.step(loss_fn, batch).",
    ),
    (
        torn_step,
        errors.TornStepError,
        "update: the optimizer raised StopError in the middle of its step, after changing 1 of 1 parameters "
        "('weight'). They may be in a mixed state. Reload the last checkpoint; Accumulator(..., "
        "undo_step=True) keeps a copy during each step and undoes it.",
    ),
    (
        closure,
        errors.OptionError,
        "Accumulator: LBFGS evaluates the loss several times per step through a closure, but a window runs "
        "once. Use it without gradgate, with a closure that runs the whole batch (or all micro-batches, each "
        "weighted by its items), or use an optimizer that needs no closure.",
    ),
    (
        plateau,
        errors.OptionError,
        "Accumulator: ReduceLROnPlateau steps on a validation result, not on an update. Leave it out here and call "
        "scheduler.step(metric) after each validation.",
    ),
    (
        two_clips,
        errors.OptionError,
        "Accumulator: both clip_norm=1.0 and clip_value=0.5 are given; a gradient is clipped once. Choose "
        "clip_norm, which keeps the direction, or clip_value.",
    ),
    (
        scale_moved,
        errors.UpdateError,
        "update: the scaler's scale changed from 1024.0 to 512.0 while this window was open, so its "
        "gradients would be divided by the wrong scale. Give each accumulator its own GradScaler, and leave "
        "scaler.update() to it.",
    ),
    (
        other_parameters,
        errors.StateError,
        "load_state_dict: the state holds 1 parameters, the optimizer 1; the first that differs is parameter 0. "
        "Make the optimizer over the same parameters in the same order as when it was saved.",
    ),
    (
        rate_already_scheduled,
        errors.OptionError,
        "scale_lr: a scheduler was already made for this optimizer and holds the unscaled rate; its next step "
        "would undo this. Call scale_lr before making the scheduler.",
    ),
]


@pytest.mark.parametrize(("cause", "kind", "text"), TEXTS, ids=[cause.__name__ for cause, _, _ in TEXTS])
def test_the_whole_text_is(cause: Callable[[], None], kind: type[BaseException], text: str) -> None:
    with pytest.raises(kind) as caught:
        cause()
    assert caught.value.args == (text,)  # one argument: an exception with two is printed as a tuple


def everything_raised() -> list[type[BaseException]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", everything_raised(), ids=lambda kind: kind.__name__)
def test_every_error_is_a_gradgate_error_or_warning_and_says_what_it_is_for(
    kind: type[BaseException],
) -> None:
    assert issubclass(kind, (errors.GradgateError, errors.GradgateWarning))
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")
