"""Compares the calls of each learning-rate scheduler with the steps of its optimizer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from gradgate.checker.analysis._origins import counts_as_a_loop_does
from gradgate.checker.analysis._run import Run
from gradgate.events import (
    Backward,
    EpochEnded,
    EpochStarted,
    ScalerUsed,
    Scheduled,
    SchedulerMade,
    Stepped,
)

GONE = 1e-3  # fraction of the highest learning rate


@dataclass
class Cadence:
    """The calls of one scheduler and the steps of its optimizer, as event numbers."""

    number: int  # construction of the scheduler
    made: SchedulerMade
    calls: list[int] = field(default_factory=list)
    by_others: int = 0  # calls by other schedulers
    steps: list[int] = field(default_factory=list)  # including steps that a gradient scaler skipped
    epochs: int = 0  # passes over a DataLoader with steps in them

    @property
    def counts(self) -> str:
        return f"{len(self.calls)} times for {len(self.steps)} steps"

    def filled(self) -> float:
        """Return the fraction of consecutive pairs of calls that have an optimizer step in between."""
        pairs = list(pairwise(self.calls))
        with_step = sum(any(first < step < second for step in self.steps) for first, second in pairs)
        return with_step / len(pairs) if pairs else 1.0


def cadences(run: Run) -> dict[int, list[Cadence]]:
    """Return the cadence of every scheduler, by optimizer."""
    found: dict[int, Cadence] = {}
    steps: dict[int, list[int]] = defaultdict(list)
    for number, event in enumerate(run.events):
        if isinstance(event, SchedulerMade):
            found.setdefault(event.scheduler, Cadence(number, event))
        elif isinstance(event, Scheduled) and event.scheduler in found:
            if event.inner:
                found[event.scheduler].by_others += 1
            else:
                found[event.scheduler].calls.append(number)
        elif isinstance(event, Stepped) or (isinstance(event, ScalerUsed) and event.skipped):
            steps[event.optimizer].append(number)
    by_optimizer = defaultdict(list)
    for cadence in found.values():
        cadence.steps = steps[cadence.made.optimizer]
        cadence.epochs = _epochs(run, cadence.steps)
        by_optimizer[cadence.made.optimizer].append(cadence)
    return by_optimizer


def _epochs(run: Run, steps: list[int]) -> int:
    """Count the passes over a DataLoader during which the optimizer stepped."""
    spans: list[tuple[int, int]] = []
    began: dict[int, int] = {}
    for number, event in run.numbered(EpochStarted, EpochEnded):
        loader = event.loader  # type: ignore[attr-defined]
        if loader in began:
            spans.append((began.pop(loader), number))
        if isinstance(event, EpochStarted):
            began[loader] = number
    spans += [(number, len(run.events)) for number in began.values()]
    return sum(any(first < step < last for step in steps) for first, last in spans)


def micro_batches(run: Run, cadence: Cadence) -> int:
    """Return the number of backward calls that the steps used or that came after the last step."""
    last = {window.step: window for window in run.windows if window.step in cadence.steps}
    micro = sorted({number for window in last.values() for number in window.micro})
    sites = {run.events[number].site for number in micro}
    rest = (number for number, event in run.numbered(Backward) if micro and number > micro[-1])
    return len(micro) + sum(run.events[number].site in sites for number in rest)


def rates(run: Run, cadence: Cadence) -> list[float]:
    """Return the highest learning rate of each step."""
    events = [run.events[step] for step in cadence.steps]
    return [max(event.lr, default=0.0) for event in events if isinstance(event, Stepped)]


def low(run: Run, cadence: Cadence) -> float:
    """Return the fraction of the steps that come after the highest learning rate and have almost none."""
    found = rates(run, cadence)
    peak = found.index(max(found))
    return sum(rate < GONE * found[peak] for rate in found[peak:]) / len(found)


def near(first: float, second: float) -> bool:
    """Return whether two lengths are almost equal."""
    return 0.8 * second <= first <= 1.25 * second


def is_in_epochs(run: Run, cadence: Cadence, length: float) -> bool:
    """Return whether a length equals a finished run's number of epochs: passes of a loader or an outer loop."""
    calls, epochs = len(cadence.calls), cadence.epochs
    if run.ended != "finished":
        return False
    if cadence.made.kind == "MultiStepLR":
        return length <= epochs <= calls / 3
    if cadence.made.kind == "LambdaLR" and not _has_fallen(rates(run, cadence), int(length)):
        return False  # the length of the schedule is a guess
    if epochs and calls != epochs * epochs:  # else the length may count epochs or batches per epoch
        return length == epochs
    passes = counts_as_a_loop_does(cadence.made.site, run.events[cadence.calls[-1]].site)
    return passes and epochs in (0, length) and calls % length == 0


def _has_fallen(found: list[float], length: int) -> bool:
    """Return whether the learning rate is lowest after ``length`` steps, and far below its highest value."""
    begin = found[: length + 2]
    peak = begin.index(max(begin))
    lowest = min(begin[peak:])
    return lowest <= 0.5 * begin[peak] and lowest <= 1.01 * min(found[peak:])


def unit(cadence: Cadence) -> str:
    """Return when to advance a schedule that was never advanced. The schedule's length shows the unit."""
    length, steps = cadence.made.horizon, len(cadence.steps)
    if cadence.made.kind == "OneCycleLR" or (length and near(length, steps)):
        return "after each optimizer.step()"
    if cadence.made.kind == "ExponentialLR" or (length and length <= cadence.epochs):
        return "once an epoch, after the last optimizer.step()"
    return "after optimizer.step(): once a step, or once an epoch if its length counts epochs"
