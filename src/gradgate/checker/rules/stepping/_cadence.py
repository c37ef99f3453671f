"""Compares the calls of each learning-rate scheduler with the steps of its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._optimizer_names import scheduler_name
from gradgate.checker.analysis._origins import counts_as_a_loop_does
from gradgate.checker.analysis._queries import windows_of
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

_GONE = 1e-3  # a learning rate below this fraction of the highest is near zero
_DECAYS = ("StepLR", "MultiStepLR", "ExponentialLR", "MultiplicativeLR")


@dataclass
class Cadence:
    """The calls of one scheduler and the steps of its optimizer, as event numbers."""

    run: Run
    number: int  # construction of the scheduler
    made: SchedulerMade
    calls: list[int]
    by_others: int  # calls by other schedulers
    steps: list[int]  # including steps that a gradient scaler skipped

    @property
    def call(self) -> str:
        """The call that advances the scheduler, with the script's name: "sched.step()"."""
        last = self.run.events[self.calls[-1]].site if self.calls else ()
        by_a_trainer = bool(self.steps) and last[:1] == self.run.events[self.steps[-1]].site[:1]
        return f"{scheduler_name(self.made, () if by_a_trainer else last)}.step()"

    @property
    def step(self) -> str:
        """The optimizer's step, with the script's name."""
        return f"{self.run.optimizer(self.made.optimizer)}.step()"

    @property
    def counts(self) -> str:
        """The numbers of calls and steps as text."""
        return f"{len(self.calls)} times for {len(self.steps)} steps"

    @cached_property
    def filled(self) -> float:
        """The fraction of consecutive pairs of calls that have an optimizer step in between."""
        pairs = list(pairwise(self.calls))
        with_step = sum(any(first < step < second for step in self.steps) for first, second in pairs)
        return with_step / len(pairs) if pairs else 1.0

    @cached_property
    def epochs(self) -> int:
        """The number of passes over a DataLoader during which the optimizer stepped."""
        marks = grouped(
            (event.loader, (number, isinstance(event, EpochStarted)))  # type: ignore[attr-defined]
            for number, event in self.run.numbered(EpochStarted, EpochEnded)
        )
        passes = [
            (first, last)
            for several in marks.values()
            for (first, starts), (last, _) in pairwise([*several, (len(self.run.events), False)])
            if starts
        ]
        return sum(any(first < step < last for step in self.steps) for first, last in passes)

    @cached_property
    def micro_batches(self) -> int:
        """The number of backward calls that the steps used or that came after the last step."""
        windows = windows_of(self.run, self.made.optimizer)
        micro = sorted({number for window in windows for number in window.micro})
        sites = {self.run.events[number].site for number in micro}
        rest = [event for number, event in self.run.numbered(Backward) if micro and number > micro[-1]]
        return len(micro) + sum(event.site in sites for event in rest)

    @cached_property
    def rates(self) -> list[float]:
        """The highest learning rate of each step."""
        events = [self.run.events[step] for step in self.steps]
        return [max(event.lr, default=0.0) for event in events if isinstance(event, Stepped)]

    @property
    def advanced_to(self) -> list[float]:
        """The highest learning rate after each call."""
        events = [self.run.events[call] for call in self.calls]
        return [max(event.lr, default=0.0) for event in events if isinstance(event, Scheduled)]

    @property
    def low(self) -> float:
        """The fraction of all steps that have a learning rate near zero, after the highest rate."""
        peak = self.rates.index(max(self.rates))
        return sum(rate < _GONE * self.rates[peak] for rate in self.rates[peak:]) / len(self.rates)

    @property
    def is_gone(self) -> bool:
        """Whether the learning rate is near zero for many steps, or after the last step of a per-batch decay."""
        if not self.rates or max(self.rates) == 0:
            return False
        each_batch = len(self.calls) >= 2 * self.epochs >= 4 and self.made.kind in _DECAYS
        return self.low >= 0.4 or (each_batch and self.rates[-1] < _GONE * max(self.rates))

    def is_in_epochs(self, length: float) -> bool:
        """Return whether a length equals the epochs of a finished run, counted by a loader or an outer loop."""
        kind, calls, epochs = self.made.kind, len(self.calls), self.epochs
        if self.run.ended != "finished":
            return False
        if kind == "MultiStepLR":
            return length <= epochs <= calls / 3
        if kind == "LambdaLR" and not self._has_fallen(int(length)):
            return False  # the length of the schedule is a guess
        if epochs and calls != epochs * epochs:  # else the length may count epochs or batches per epoch
            return length == epochs
        passes = counts_as_a_loop_does(self.made.site, self.run.events[self.calls[-1]].site)
        return passes and epochs in (0, length) and calls % length == 0

    def _has_fallen(self, length: int) -> bool:
        """Return whether the learning rate is lowest after ``length`` steps, and far below its highest value."""
        begin = self.rates[: length + 2]
        peak = begin.index(max(begin))
        lowest = min(begin[peak:])
        return lowest <= 0.5 * begin[peak] and lowest <= 1.01 * min(self.rates[peak:])

    @property
    def unit(self) -> str:
        """When to advance a schedule that was never advanced. The schedule's length shows the unit."""
        kind, length = self.made.kind, self.made.horizon
        if kind == "OneCycleLR" or (length and near(length, len(self.steps))):
            return f"after each {self.step}"
        if kind == "ExponentialLR" or (length and length <= self.epochs):
            return f"once an epoch, after the last {self.step}"
        return f"after {self.step}: once a step, or once an epoch if its length counts epochs"


def cadences(run: Run) -> dict[int, list[Cadence]]:
    """Return the cadence of every scheduler, by optimizer."""
    steps = grouped(
        (event.optimizer, number)
        for number, event in run.numbered(Stepped, ScalerUsed)
        if isinstance(event, Stepped) or (isinstance(event, ScalerUsed) and event.skipped)
    )
    found: dict[int, Cadence] = {}
    for number, event in run.numbered(SchedulerMade, Scheduled):
        if isinstance(event, SchedulerMade):
            made = Cadence(run, number, event, [], 0, steps[event.optimizer])
            found.setdefault(event.scheduler, made)
        elif isinstance(event, Scheduled) and event.scheduler in found:
            found[event.scheduler].by_others += event.inner
            found[event.scheduler].calls += [] if event.inner else [number]
    return grouped((cadence.made.optimizer, cadence) for cadence in found.values())


def near(first: float, second: float) -> bool:
    """Return whether two lengths are almost equal."""
    return 0.8 * second <= first <= 1.25 * second
