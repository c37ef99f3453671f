"""A learning rate doesn't follow its schedule: never advanced, too early, over too soon, or hardly begun.

## What it does
Reads the learning rate of each group at each optimizer step, and compares it with the schedule's first rate, its
length (``T_max``, ``total_steps``, the last milestone, a number in a ``LambdaLR``'s function), and the numbers of
steps and micro-batches. Reports:

- a schedule that never changes a rate, because it is never advanced or belongs to an optimizer that was replaced;
- a group that was added after the scheduler, so that its rate stays while the others change;
- a schedule that is advanced before the first step;
- a schedule that is over in the first fifth of the run, or a cosine that climbs back after its end;
- a schedule of which a run that ends by itself sees less than half, although its length is the number of steps
  (a note if it is the number of micro-batches, because a run may be a part of a longer one);
- a ``LambdaLR`` whose function returns learning rates in place of factors;
- a scheduler that is constructed again and again, so that the rate jumps back before the schedule ends.

## Why is this bad?
The learning rate stays at its warm-up value, or decays to zero in a fraction of the run. The loss falls, but more
slowly.

## Example
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            loss_fn(model(x), y).backward()
            optimizer.step()
            scheduler.step()             # T_max counts epochs, but this line runs for each batch

## Use instead
    for epoch in range(epochs):
        for x, y in loader:
            ...
            optimizer.step()
        scheduler.step()                 # or T_max=epochs * len(loader), advanced after each step

## Known limits
Schedules written by hand are not followed. A schedule that some line might advance is reported as never advanced
only in a note. Not found: a schedule that is advanced early but keeps its first rate, a second line that advances
it now and then, a warm-up that counts steps but is advanced once an epoch, and a plateau that waits for the wrong
direction.

## Sources
https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._optimizer_names import scheduler_name
from gradgate.checker.analysis._queries import windows_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import inside, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, FixAt, Rule, Text
from gradgate.checker.rules.texts import stepping as texts
from gradgate.events import Backward, EpochStarted, OptimizerMade, Scheduled, SchedulerMade, Site

_LEAST = 8  # steps that show a course
# StepLR with the usual milestones, a third and two thirds of the run, leaves 46% to these steps.
_LEFT = 0.2
_ONE_COURSE = ("CosineAnnealingLR", "OneCycleLR", "PolynomialLR", "LambdaLR", "SequentialLR")


@dataclass
class _Life:
    """A scheduler's calls, its optimizer's steps, and the rates of these steps."""

    run: Run
    number: int  # construction of the scheduler
    made: SchedulerMade
    calls: list[int]  # except calls by other schedulers
    by_others: int

    @cached_property
    def steps(self) -> list[int]:
        """The optimizer's steps."""
        return self.run.steps(self.made.optimizer)

    @cached_property
    def rates(self) -> list[float]:
        """The highest learning rate of each step."""
        return [max(self.run.stepped(step).lr, default=0.0) for step in self.steps]

    @cached_property
    def micro_batches(self) -> int:
        """The number of backward calls at the lines whose gradients the steps use."""
        micro = {number for window in windows_of(self.run, self.made.optimizer) for number in window.micro}
        sites = {self.run.events[number].site for number in micro}
        return sum(event.site in sites for event in self.run.of(Backward))

    @property
    def base(self) -> float:
        """The optimizer's highest learning rate before any schedule."""
        made = self.run.made.get(self.made.optimizer, [])
        return max((group.lr or 0.0 for group in made[0].groups), default=0.0) if made else 0.0

    def say(self, text: Text, where: Site, fix: FixAt | None = None, **facts: Any) -> Finding:
        """Make a finding about this scheduler."""
        last = self.run.events[self.calls[-1]].site if self.calls else ()
        if self.steps and innermost(where) == innermost(self.run.events[self.steps[-1]].site):
            where, last = self.made.site, ()  # a library line makes the steps and advances the schedule
        known: dict[str, Any] = {
            "kind": self.made.kind,
            "name": scheduler_name(self.made, last),
            "optimizer": self.run.optimizer(self.made.optimizer),
            "advanced": len(self.calls),
            "steps": len(self.steps),
            "length": self.made.horizon or 0.0,
        }
        return RULE.say(where, text, fix=fix or (), **{"count": len(self.calls) or 1, **known, **facts})


def _judge(run: Run) -> Iterator[Finding]:
    lives: dict[int, _Life] = {}
    for number, event in run.numbered(SchedulerMade, Scheduled):
        if isinstance(event, SchedulerMade):
            lives.setdefault(event.scheduler, _Life(run, number, event, [], 0))
        elif isinstance(event, Scheduled) and event.scheduler in lives:
            lives[event.scheduler].by_others += event.inner
            lives[event.scheduler].calls += [] if event.inner else [number]
    by_optimizer = grouped((life.made.optimizer, life) for life in lives.values())
    for several in by_optimizer.values():
        yield from filter(None, [_unmoved(several, by_optimizer.keys()), _begun_anew(several)])
        for life in several:
            if life.calls and len(life.steps) > 1:
                questions = (_early, _absolute, _climbs_back, _soon_over, _not_reached, _later_group)
                yield from filter(None, [next(filter(None, (ask(life) for ask in questions)), None)])


def _unmoved(several: list[_Life], scheduled: object) -> Finding | None:
    """Report schedules whose parameters are updated at one rate, by their optimizer or its successor."""
    life, run = several[-1], several[-1].run
    made = life.made
    if run.ended != "finished" or any(each.by_others for each in several):
        return None
    if life.steps and not any(each.calls for each in several):
        rates = set(life.rates)
        sure = not _may_be_advanced(life)
        facts: dict[str, Any] = {
            "rate": life.rates[0],
            "severity": None if sure else "info",
            "count": len(life.steps),
        }
        return (
            life.say(texts.NEVER_ADVANCED, made.site, **facts) if len(rates) == 1 < len(life.steps) else None
        )
    for other in run.stepping if not life.steps else ():
        steps = [run.stepped(step) for step in run.steps(other) if step > life.number]
        # A curve that is drawn before the training advances a schedule without steps.
        if not life.calls or life.calls[-1] < run.steps(other)[0]:
            continue
        rates = {max(event.lr, default=0.0) for event in steps}
        shared = run.held(other) & run.held(made.optimizer)
        if shared and len(rates) == 1 and min(len(steps), len(life.calls)) > 1 and other not in scheduled:  # type: ignore[operator]
            facts = {
                "optimizer": run.optimizer(other),
                "rate": rates.pop(),
                "steps": len(steps),
            }
            return life.say(texts.OTHER_OPTIMIZER, made.site, severity="error", about=shared, **facts)
    return None


def _may_be_advanced(life: _Life) -> bool:
    """Return whether a line that didn't run calls ``step`` on an object with the scheduler's name."""
    name = scheduler_name(life.made, ()).rpartition(".")[2]
    nodes = (node for file in life.run.files for node in inside(ast.Attribute, tree_of(file)))
    return any(node.attr == "step" and ast.unparse(node.value).endswith(name) for node in nodes)


def _begun_anew(several: list[_Life]) -> Finding | None:
    """Report a line that constructs schedulers for one optimizer, each before the last one's end."""
    for lives in grouped((life.made.site, life) for life in several).values():
        first = lives[0]
        unfinished = [
            life
            for life, later in pairwise(lives)
            if 0 < len(life.calls) < (life.made.horizon or 0.0) and life.calls[-1] < later.number
            if life.run.events[life.calls[-1]].lr != later.made.lr == first.made.lr  # type: ignore[attr-defined]
        ]
        if len(unfinished) >= 2:
            facts: dict[str, Any] = {"times": len(lives), "rate": max(first.made.lr, default=0.0)}
            return first.say(texts.BEGUN_ANEW, first.made.site, **facts, count=len(lives))
    return None


def _early(life: _Life) -> Finding | None:
    """Report a scheduler that is advanced once before the first step, and then between all steps."""
    calls, steps, first = life.calls, life.steps, max(life.made.lr, default=0.0)
    between = all(any(a < step < b for step in steps) for a, b in pairwise(calls))
    # The last call follows the last step if only the first call is early, to resume a schedule.
    early = len(calls) > 1 and calls[0] < steps[0] and calls[-1] < steps[-1] and between
    if not early or first in (0.0, life.rates[0]):
        return None
    return life.say(texts.TOO_EARLY, life.run.events[calls[0]].site, first=first, used=life.rates[0])


def _soon_over(life: _Life) -> Finding | None:
    rates = life.rates
    if not any(rates):
        return None  # ineffective-step
    late = sum(rates[len(rates) // 5 :]) / sum(rates)
    peak = rates.index(max(rates))
    if len(rates) < _LEAST or late >= _LEFT or peak >= len(rates) // 5 or life.made.periodic:
        return None
    note = "info" if life.made.kind == "ReduceLROnPlateau" else None  # the loss may have stopped falling
    in_steps = 0.8 * len(rates) <= (life.made.horizon or 0.0) <= 1.25 * len(rates)
    where = life.run.events[life.calls[-1]].site
    return life.say(
        texts.SOON_OVER, where, _after_step if in_steps else _after_epoch, share=late, severity=note
    )


def _climbs_back(life: _Life) -> Finding | None:
    length, rates = life.made.horizon or 0.0, life.rates
    if life.made.kind != "CosineAnnealingLR" or len(life.calls) < 1.5 * length:
        return None
    low = rates.index(min(rates))
    epochs = max(Counter(event.loader for event in life.run.of(EpochStarted)).values(), default=0)
    # Otherwise the length may count the batches of an epoch, for a cosine that goes up and down.
    in_epochs = length == epochs and len(life.calls) != epochs * epochs
    if max(rates[low:]) <= 0.5 * max(rates[: low + 1]):
        return None
    facts: dict[str, Any] = {
        "low": rates[low],
        "high": max(rates[low:]),
        "severity": None if in_epochs else "info",
    }
    return life.say(texts.CLIMBS_BACK, life.run.events[life.calls[-1]].site, _after_epoch, **facts)


def _not_reached(life: _Life) -> Finding | None:
    made, calls, steps, micro = life.made, len(life.calls), len(life.steps), life.micro_batches
    length = made.horizon or 0.0
    if made.kind not in _ONE_COURSE or 2 * calls > length or life.run.ended != "finished":
        return None
    in_steps = 0.8 * steps <= length <= 1.25 * steps
    # A run may be the first part of a longer one.
    if not in_steps and abs(length - micro) > 1:
        return None
    where = life.run.events[life.calls[-1]].site if in_steps else made.site
    facts: dict[str, Any] = {
        "micro": micro,
        "share": calls / length,
        "severity": None if in_steps else "info",
    }
    return life.say(texts.NOT_REACHED, where, _after_step if in_steps else None, **facts)


def _absolute(life: _Life) -> Finding | None:
    highest, base = max(life.rates), life.base
    # A schedule such as Noam's, for a base of 1, also has small factors.
    if life.made.kind != "LambdaLR" or not 0 < base <= 0.1 or abs(highest / base - base) > 0.01 * base:
        return None
    return life.say(texts.ABSOLUTE_RATES, life.made.site, base=base, highest=highest)


def _later_group(life: _Life) -> Finding | None:
    run, known = life.run, len(life.made.lr)
    added = [event for event in run.made.get(life.made.optimizer, ()) if event.added]
    steps = [run.stepped(step).lr for step in life.steps]
    steps = [rates for rates in steps if len(rates) > known]
    if not added or len(steps) < _LEAST or len({rates[:known] for rates in steps}) == 1:
        return None
    if len({rates[known:] for rates in steps}) > 1:
        return None
    last: OptimizerMade = added[-1]
    ids = frozenset().union(*(group.parameters for group in last.groups[known:]))
    facts: dict[str, Any] = {
        "parameters": run.names(ids),
        "rate": steps[0][known],
        "steps": len(steps),
        "about": ids,
    }
    return life.say(texts.LATER_GROUP, last.site, **facts)


# The fix: move the call


def _other_steps(at: Statement) -> list[ast.stmt]:
    return [step for step in at.steps() if method(at.node) == "step" and owner(step) != owner(at.node)]


def _after_step(at: Statement) -> Fix:
    steps = _other_steps(at)
    return (Move(at.line, after=steps[0].lineno),) if len(steps) == 1 else ()


def _after_epoch(at: Statement) -> Fix:
    """Move the call after the loop over the batches, inside the loop over the epochs."""
    nested = method(at.node) == "step" and len(at.loops) > 1
    return (Move(at.line, after=at.loops[-2].lineno),) if nested else ()


RULE = Rule("GG301", "scheduler-cadence", "warning", __doc__ or "", _judge)
