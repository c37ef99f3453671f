"""Hooks that hear of each update."""

import torch

import gradgate as gg
from tests.accumulation.one_weight import StopError, add, one_weight, stopped_by, update_by


def test_a_hook_is_told_of_each_update_when_all_is_done() -> None:
    weight, optimizer, _ = one_weight()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    accumulator = gg.Accumulator(optimizer, scheduler=scheduler)
    seen = []

    def hook(update: gg.Update) -> None:
        seen.append((update, update.stepped, weight.item(), weight.grad, scheduler.get_last_lr()))

    accumulator.register_update_hook(hook)
    update = update_by(accumulator, weight, [(2.0, 1), (4.0, 1)])
    assert seen == [(update, True, -3.0, None, [0.5])]


def test_a_hook_is_told_of_a_skipped_update_and_not_of_one_that_raised() -> None:
    weight, _, accumulator = one_weight(nonfinite="skip")
    stepped: list[bool] = []
    accumulator.register_update_hook(lambda update: stepped.append(update.stepped))
    update_by(accumulator, weight, [(float("inf"), 1)])
    with stopped_by(), accumulator.update() as update:
        add(update, weight, [(1.0, 1)])
        raise StopError
    update_by(accumulator, weight, [(1.0, 1)])
    assert stepped == [False, True]


def test_what_a_hook_raises_comes_out_and_the_update_stays_made() -> None:
    weight, _, accumulator = one_weight()

    def hook(update: gg.Update) -> None:
        raise StopError

    handle = accumulator.register_update_hook(hook)
    with stopped_by():
        update_by(accumulator, weight, [(3.0, 1)])
    assert (weight.item(), weight.grad) == (-3.0, None)
    handle.remove()
    update_by(accumulator, weight, [(1.0, 1)])
    assert weight.item() == -4.0


def test_a_hook_is_told_once_of_an_update_that_was_cut_finer() -> None:
    weight, _, accumulator = one_weight()
    told: list[float] = []
    accumulator.register_update_hook(lambda update: told.append(update.count))

    def short_of_memory(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (weight * x).mean()

    accumulator.step_window(short_of_memory, [torch.ones(4, dtype=weight.dtype, device=weight.device)])
    assert told == [4]
