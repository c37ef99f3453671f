"""Finds schedulers of an optimizer that never steps while another optimizer trains its parameters."""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Ids, Scheduled, SchedulerMade, Stepped

_CALLS = 2  # number of scheduler calls after the other optimizer's first step
_STEPS = 3


def of_discarded_optimizers(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a scheduler of an optimizer that never steps, if another one trains at a constant learning rate."""
    scheduled = {event.optimizer for event in run.of(SchedulerMade)}
    for number, made in run.numbered(SchedulerMade):
        assert isinstance(made, SchedulerMade)  # noqa: S101
        if made.optimizer not in run.made or _steps(run, made.optimizer, number):
            continue
        for other in run.made:
            steps = _steps(run, other, number)
            if (
                other in scheduled
                or len(steps) < _STEPS
                or not _held(run, other) & _held(run, made.optimizer)
            ):
                continue
            calls = [
                each
                for each, event in run.numbered(Scheduled)
                if event.scheduler == made.scheduler and not event.inner and each > steps[0]  # type: ignore[attr-defined]
            ]
            rates = {run.stepped(step).lr for step in steps}
            if len(calls) < _CALLS or len(rates) != 1:
                continue
            name, rate = run.optimizer(other), max(next(iter(rates)), default=0.0)
            yield rule.finding(
                made.site,
                f"{made.kind} changes an optimizer that never steps: {len(calls)} calls of its step() leave "
                f"the learning rate of {name}, which steps the same parameters, at {rate:g} in all "
                f"{len(steps)} steps.",
                why="The learning rate never follows the schedule.",
                advice=f"Construct the scheduler after {name}, and pass {name} to it.",
                severity="error",
                count=len(calls),
                evidence={"steps": len(steps), "advanced": len(calls)},
            )
            break


def _steps(run: Run, optimizer: int, since: int) -> list[int]:
    return [
        number
        for number, event in run.numbered(Stepped)
        if number > since and event.optimizer == optimizer  # type: ignore[attr-defined]
    ]


def _held(run: Run, optimizer: int) -> Ids:
    groups = (group.parameters for event in run.made[optimizer] for group in event.groups)
    return frozenset[int]().union(*groups)
