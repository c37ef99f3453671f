"""The summary of a run: how much of it was watched."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from gradgate.checker.analysis._optimizer_names import optimizer_names
from gradgate.checker.reports._words import counted, duration, place_of
from gradgate.checker.rules import ENOUGH
from gradgate.events import Log, OptimizerMade, Stepped

_EQUAL = 1e-6  # relative: the values are compared by sums


@dataclass(frozen=True, slots=True)
class Held:
    """How many parameters an optimizer holds."""

    name: str  # the user's variable: "opt_d"; "opt from train.py:12" if another line constructs another `opt`
    kind: str  # "AdamW"; "" if the optimizer was created before the watch began
    parameters: int  # number of tensors
    elements: int  # total number of elements


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """How much of a run was watched. Counts are those of the process with the most steps."""

    steps: int
    backwards: int
    seconds: float
    watching_seconds: float  # part of the seconds that the watcher itself took
    optimizers: tuple[Held, ...] = ()
    unowned: Held | None = None  # trainable parameters in no optimizer
    processes: int = 1
    equal_counts: bool = True  # whether all processes made the same numbers of steps and backward calls
    ended_apart: int = (
        0  # parameters that began with equal values on all ranks and ended with different values
    )
    too_short: bool = False  # whether no optimizer made as many steps as some rules need
    silenced: int = 0  # findings left out because of a comment in the source
    unused: tuple[str, ...] = ()  # comments that silenced no finding: "train.py:12"
    known: int = 0  # findings left out because they are in the baseline
    gone: int = 0  # findings in the baseline that this run did not have
    notes: tuple[str, ...] = ()  # limits of this check, and their reasons
    outcome: str = "finished"  # or "stopped" (--max-steps, --max-seconds), "interrupted", "failed"
    # The script's exit code, or 128 + the number of the signal that ended it. None for a loop in this process.
    exit_code: int | None = None
    edited: bool = False  # whether the script failed only because of the edits of --fix

    @property
    def began(self) -> bool:
        """Whether training had begun."""
        return bool(self.steps or self.backwards)

    @property
    def ending(self) -> str:
        """How the script ended early: "failed with exit code 3", "was ended by SIGTERM"; otherwise ""."""
        if self.outcome == "failed":
            return f"failed with exit code {self.exit_code}" if self.exit_code else "failed"
        if self.outcome != "interrupted":
            return ""
        number = (self.exit_code or 0) - 128
        if number == signal.SIGINT or number not in map(int, signal.Signals):
            return "was interrupted"
        return f"was ended by {signal.Signals(number).name}"

    def __repr__(self) -> str:
        done = f"{counted(self.steps, 'step')}, {counted(self.backwards, 'backward call')}"
        return f"Summary({done}, {self.outcome} after {duration(self.seconds)})"


def summarized(
    logs: Sequence[Log], outcome: str, notes: Sequence[str], *, exit_code: int | None = None
) -> Summary:
    """Return the summary of a run, from the logs of its processes. The logs may add notes of their own."""
    trained = [log for log in logs if log.steps or log.backwards]
    if trained:
        summary = _of_log(max(trained, key=lambda log: (log.steps, log.backwards)))
    else:
        summary = Summary(0, 0, max((log.seconds for log in logs), default=0.0), 0.0)
    return replace(
        summary,
        processes=max(1, len(trained)),
        equal_counts=len({(log.steps, log.backwards) for log in trained}) <= 1,
        ended_apart=_ended_apart([log for log in trained if log.world > 1]),
        too_short=_is_too_short(trained),
        notes=tuple(dict.fromkeys([*(note for log in logs for note in _notes(log)), *notes])),
        outcome=outcome,
        exit_code=exit_code,
    )


def _is_too_short(logs: Sequence[Log]) -> bool:
    """Return whether optimizers made steps, but none of them enough for every rule."""
    steps = [Counter(event.optimizer for event in log.events if isinstance(event, Stepped)) for log in logs]
    return 0 < max((count for counts in steps for count in counts.values()), default=0) < ENOUGH


def _ended_apart(ranks: Sequence[Log]) -> int:
    found = 0
    for number in set.intersection(*(set(log.parameters) for log in ranks)) if ranks else ():
        records = [log.parameters[number] for log in ranks]
        ends = [each.ended for each in records if each.ended is not None]
        if len(ends) == len(ranks) and len({(each.name, each.shape, each.began) for each in records}) == 1:
            found += max(ends) - min(ends) > _EQUAL * max(ends)
    return found


def _notes(log: Log) -> Iterator[str]:
    if log.not_judged:
        yield log.not_judged
    elif log.backwards and not log.steps:
        yield "No step of a torch optimizer was seen. Hand-written updates can be checked only in part."
    yield from log.unseen
    if log.failures:
        last = log.failures[0].strip().splitlines()[-1]
        yield (
            f"gradgate itself failed while watching ({last}), so the report may be incomplete. This is a bug in "
            "gradgate: please report it, with the script."
        )


def _of_log(log: Log) -> Summary:
    kinds, names = dict[int, str](), distinct_names(log)
    holds: dict[int, set[int]] = {number: set() for number in log.optimizers}
    for event in log.events:
        if isinstance(event, OptimizerMade):
            kinds[event.optimizer] = event.kind
            for group in event.groups:
                holds.setdefault(event.optimizer, set()).update(group.parameters)
        elif isinstance(event, Stepped):
            holds.setdefault(event.optimizer, set()).update(event.used)
    everywhere = set().union(*holds.values())
    known = (each for number, each in log.parameters.items() if number not in everywhere)
    left = {each.id for each in known if each.trainable and each.registered}
    return Summary(
        steps=log.steps,
        backwards=log.backwards,
        seconds=log.seconds,
        watching_seconds=log.watching_seconds,
        optimizers=tuple(
            _held(log, names.get(number, "optimizer"), kinds.get(number, ""), ids)
            for number, ids in holds.items()
            if ids
        ),
        unowned=_held(log, "", "", left) if left else None,
    )


def _held(log: Log, name: str, kind: str, ids: Collection[int]) -> Held:
    elements = sum(prod(log.parameters[number].shape) for number in ids if number in log.parameters)
    return Held(name, kind, len(ids), elements)


def distinct_names(log: Log) -> dict[int, str]:
    """Return the name of each optimizer. If several lines construct an optimizer of this name, add the line."""
    names = optimizer_names(log)
    places: dict[int, str] = {}
    for event in log.events:
        if isinstance(event, OptimizerMade) and event.site:
            places.setdefault(event.optimizer, place_of(event.site[0].file, event.site[0].line))
    by_name: dict[str, set[str]] = defaultdict(set)
    for number, place in places.items():
        by_name[names[number]].add(place)
    return {
        number: f"{name} from {places[number]}" if number in places and len(by_name[name]) > 1 else name
        for number, name in names.items()
    }
