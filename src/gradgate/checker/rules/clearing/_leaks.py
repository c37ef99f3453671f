"""Finds gradients of another optimizer's loss in the windows of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._queries import Loss, calls_of, loss_of, own_losses, repeats
from gradgate.checker.analysis._run import Run
from gradgate.events import Opposed

_FAR_APART = -0.6  # a mean cosine below which two losses oppose each other


class Leak(NamedTuple):
    """A contribution of another optimizer's loss to a step.

    ``late``: the other loss was back-propagated after all of the step's own losses, so the step could come first.
    """

    window: StepWindow
    part: Contribution
    own: Loss  # the step's last own loss
    late: bool


def leaks(run: Run) -> Iterator[Leak]:
    """Yield the leaks into each step.

    A late loss is a leak only if its gradient opposes that of the step's own loss, or if it compares nothing with
    data. An encoder's loss through a decoder, and the decoder's own loss, both say what to decode, so they may be
    added.
    """
    own = {optimizer: own_losses(run, optimizer) for optimizer in run.stepping}
    for window in run.windows:
        mine = own[window.optimizer]
        last = max((number for number in window.micro if loss_of(run, number) in mine), default=0)
        for part in window.fresh if last else ():
            if part.backward > last and not part.touched and _is_passed_on(run, window, part):
                yield Leak(window, part, loss_of(run, last), late=True)
        # A window that repeats used gradients lacks a clearing, which would also clear the leftovers.
        if window.micro and not run.repeats_closure(window) and not repeats(run, window):
            loss = loss_of(run, window.micro[-1])
            yield from (Leak(window, part, loss, late=False) for part in _leftovers(run, window, own))


def _leftovers(run: Run, window: StepWindow, own: dict[int, set[Loss]]) -> Iterator[Contribution]:
    """Yield contributions that another optimizer's step used before this window's own loss was back-propagated."""
    last = window.micro[-1]
    mine = loss_of(run, last) in own[window.optimizer]
    for part in window.fresh:
        if part.backward < 0 or part.touched or loss_of(run, part.backward) == loss_of(run, last):
            continue
        owners = {optimizer for optimizer, losses in own.items() if loss_of(run, part.backward) in losses}
        steps = _steps_of_others(run, part, window.optimizer)
        theirs = owners and owners <= {run.stepped(step).optimizer for step in steps}
        opposes = steps and (theirs or mine) and opposed(run, window, part) < _FAR_APART
        if opposes or any(step < last for step in steps) or (mine and _is_passed_on(run, window, part)):
            yield part


def opposed(run: Run, window: StepWindow, contribution: Contribution) -> float:
    """Return the mean recorded cosine between a contribution and other gradients of its window; 0 if unknown."""
    cosines = [
        cosine
        for event in run.events[contribution.backward : window.step]
        if isinstance(event, Opposed)
        for number, cosine in event.cosines
        if number in contribution.atom
    ]
    return sum(cosines) / len(cosines) if cosines else 0.0


def _steps_of_others(run: Run, part: Contribution, optimizer: int) -> set[int]:
    """Return the steps of other optimizers that used gradients of the same backward call."""
    siblings = (other for other in run.by_backward[part.backward] if other is not part)
    steps = {step for sibling in siblings for step in sibling.consumed}
    return {step for step in steps if run.stepped(step).optimizer != optimizer}


def _is_passed_on(run: Run, window: StepWindow, part: Contribution) -> bool:
    """Return whether a loss is another optimizer's own, and these parameters should only pass its gradient on."""
    loss, steps = loss_of(run, part.backward), _steps_of_others(run, part, window.optimizer)
    users = (each for each in run.windows if each.micro and each.step in steps)
    if not any(loss_of(run, each.micro[-1]) == loss for each in users):
        return False
    through = any(event.beyond & run.held(window.optimizer) for event in calls_of(run, loss))
    return through and (is_driven(run, loss, window.optimizer) or opposed(run, window, part) < _FAR_APART)


def is_driven(run: Run, loss: Loss, optimizer: int) -> bool:
    """Return whether a loss pushes the output of this optimizer's parameters in one direction."""
    held = run.held(optimizer)
    return any(event.driven & event.beyond & held for event in calls_of(run, loss))
