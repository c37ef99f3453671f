"""Law 2. One update: one clip of the whole gradient, one scheduler step, one optimizer step."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

import gradgate as gg
from tests.laws.test_cut import TIME, cut_batches
from tests.reference import Problem, assert_same, parts, problem, received, whole_batch_gradient

CLIP = 1e-2  # far below the norm of any gradient here, so that a clip always bites
CUT, VALID = [3, 3, 1], [4, 4, 4, 1, 2, 3, 4]

Way = Callable[[Problem, Optimizer, LRScheduler, list[int]], None]


def block(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    with gg.Accumulator(optimizer, clip_norm=CLIP, scheduler=scheduler).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            update.backward(task.loss_mean(x, y), count=task.count(y))


def one_call(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    accumulator = gg.Accumulator(optimizer, clip_norm=CLIP, scheduler=[scheduler])
    accumulator.step_window(lambda part: task.loss_mean(*part), parts(task, cut))


def two_losses(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    with gg.Accumulator(optimizer, clip_norm=CLIP, scheduler=scheduler).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            loss, count = task.loss_mean(x, y), task.count(y)
            update.backward(loss * 0.25, count=count, retain_graph=True)
            update.backward(loss * 0.75, count=count)


def scaled(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    """With a loss scale, which the clip must not see."""
    scaler = torch.amp.GradScaler(task.x.device.type, init_scale=2.0**10)
    with gg.Accumulator(optimizer, clip_norm=CLIP, scheduler=scheduler, scaler=scaler).update() as update:
        for x, y in update.micro_batches(parts(task, cut)):
            update.backward(task.loss_mean(x, y), count=task.count(y))


def clip_per_micro_batch(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    for x, y in parts(task, cut):
        (task.loss_sum(x, y) / task.count(task.y)).backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), CLIP)
    optimizer.step()
    scheduler.step()


def clip_the_sum(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    """Clipped before the division, so to a norm that is smaller by the count."""
    for x, y in parts(task, cut):
        task.loss_sum(x, y).backward()
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), CLIP)
    for parameter in task.model.parameters():
        parameter.grad /= task.count(task.y)
    optimizer.step()
    scheduler.step()


def schedule_per_micro_batch(
    task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]
) -> None:
    for x, y in parts(task, cut):
        (task.loss_sum(x, y) / task.count(task.y)).backward()
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), CLIP)
    optimizer.step()
    for _ in cut:
        scheduler.step()


def step_per_micro_batch(task: Problem, optimizer: Optimizer, scheduler: LRScheduler, cut: list[int]) -> None:
    for x, y in parts(task, cut):
        optimizer.zero_grad()
        (task.loss_sum(x, y) / task.count(task.y)).backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), CLIP)
        optimizer.step()
    scheduler.step()


def assert_once(way: Way, valid: list[int], cut: list[int]) -> None:
    task = problem(valid, TIME)
    expected = clipped(whole_batch_gradient(task))
    optimizer = SGD(task.model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    with received(optimizer) as steps:
        way(task, optimizer, scheduler, cut)
    assert len(steps) == 1, f"{len(steps)} optimizer steps"
    assert scheduler.last_epoch == 1, f"{scheduler.last_epoch} scheduler steps"
    assert_same(steps[0], expected)


def clipped(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    carriers = [torch.nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
    for carrier, gradient in zip(carriers, gradients, strict=True):
        carrier.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(carriers, CLIP)
    assert norm > CLIP, "this clip does not bite, so that it proves nothing"
    return [carrier.grad for carrier in carriers]


@pytest.mark.parametrize("way", [block, one_call, two_losses, scaled], ids=lambda way: way.__name__)
@settings(max_examples=12)
@given(batch=cut_batches())
def test_whatever_the_cut_there_is_one_clip_one_schedule_and_one_step(
    way: Way, batch: tuple[list[int], list[int]]
) -> None:
    assert_once(way, *batch)


@pytest.mark.parametrize(
    ("way", "complaint"),
    [
        (clip_per_micro_batch, "off by"),
        (clip_the_sum, "off by"),
        (schedule_per_micro_batch, "3 scheduler steps"),
        (step_per_micro_batch, "3 optimizer steps"),
    ],
)
def test_the_law_rejects(way: Way, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_once(way, VALID, CUT)
