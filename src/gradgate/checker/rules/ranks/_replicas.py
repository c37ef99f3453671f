"""Finds replicas of one model whose parameters begin with equal values and end with different values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gradgate.checker.analysis._queries import shared_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ranks._means import LEAST, differ, sums_over_ranks
from gradgate.checker.rules.texts import ranks as texts
from gradgate.events import (
    Frame,
    Gap,
    Ids,
    Reduced,
    Scheduled,
    SchedulerMade,
    Sharded,
    Site,
    Stepped,
    Wrapped,
    Written,
)


@dataclass(frozen=True)
class _Parting:
    """The first step of an optimizer after which the ranks' values differ and never become equal again."""

    ids: Ids
    steps: tuple[tuple[int, Stepped], ...]  # each rank's step, with its number
    after: tuple[int, ...]  # the number of each rank's next step
    left: int  # number of steps since then
    gradients: bool  # the gradients of this step already differed
    moves: bool  # the values moved by different amounts


def ended_apart(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report parameters of one model that began with equal values on the ranks but end with different values.

    The ranks train one model if they communicate, or divide their data.
    """
    if any(run.log.not_judged for run in runs) or not runs[0].of(Reduced, Wrapped, Sharded):
        return
    for optimizer in sorted(set.intersection(*(set(run.made) for run in runs))):
        parting = _parted(runs, optimizer)
        where, cause, advice = _cause(runs, optimizer, parting) if parting is not None else ((), "", "")
        if where and parting is not None:
            yield rule.say(
                where,
                texts.APART,
                severity="error",
                count=parting.left,
                about=parting.ids,
                names=runs[0].names(parting.ids),
                parameters=len(parting.ids),
                ranks=len(runs),
                steps=parting.left,
                cause=cause,
                advice=advice,
            )


def _parted(runs: Sequence[Run], optimizer: int) -> _Parting | None:
    several = [_looked_at(run, optimizer) for run in runs]
    length = min(map(len, several))
    if length < LEAST + 1 or len({run.stepping[optimizer] for run in runs}) > 1:
        return None
    columns = [
        [{number: rest for number, *rest in step.norms} for _, step in steps[:length]] for steps in several
    ]
    same = frozenset.intersection(*(frozenset(norms) for column in columns for norms in column))
    parted: dict[int, set[int]] = defaultdict(set)
    for number in same:
        if len({(run.name(number), run.parameters[number].shape) for run in runs}) > 1:
            continue
        apart = [differ([column[place][number][2] for column in columns]) for place in range(length)]
        if not apart[0] and apart == sorted(apart) and sum(apart) >= LEAST:
            parted[length - sum(apart)].add(number)
    if not parted:
        return None
    first = min(parted)
    ids = frozenset[int]().union(*parted.values())
    gradients, moves = (
        any(differ([column[first - 1][number][part] for column in columns]) for number in parted[first])
        for part in (0, 1)
    )
    return _Parting(
        ids,
        tuple(steps[first - 1] for steps in several),
        tuple(steps[first][0] for steps in several),
        length - first,
        gradients,
        moves,
    )


def _looked_at(run: Run, optimizer: int) -> list[tuple[int, Stepped]]:
    """Return the optimizer's recorded steps: later steps were only counted."""
    gap = next((number for number, _ in run.numbered(Gap)), len(run.events))
    steps = ((number, run.stepped(number)) for number in run.steps(optimizer))
    return list(takewhile(lambda step: step[0] < gap and step[1].norms, steps))


def _cause(runs: Sequence[Run], optimizer: int, parting: _Parting) -> tuple[Site | Frame, str, str]:
    """Return the line, what the ranks did differently there, and what to write instead."""
    run, (number, step) = runs[0], parting.steps[0]
    if not parting.moves:  # the step changed the values equally on all ranks
        for writer, (before, _), after in zip(runs, parting.steps, parting.after, strict=True):
            for event in writer.events[before:after]:
                if isinstance(event, Written) and event.target == "value" and event.parameters & parting.ids:
                    return (
                        event.site,
                        "The gradients are averaged, but each rank writes different values here.",
                        "Write the same values on all ranks: draw random numbers from one generator with the same "
                        "seed on all ranks, or broadcast the result.",
                    )
        return (), "", ""
    if parting.gradients:
        for event in reversed(run.of(Reduced)):
            if sums_over_ranks(event) and event.numel > 2:
                return (
                    shared_line(event.site, step.site) or event.site,
                    "Each step uses the gradients of the rank's own data: the all-reduce here comes too late, "
                    "or its result is not written to the gradients.",
                    "Average the gradients between backward() and step().",
                )
        return (
            step.site,
            "The ranks' gradients already differ in the step before the first difference.",
            "Average the gradients first. If you clip, mask or add noise, do it after the average, in the same way "
            "on all ranks.",
        )
    if len({each.lr for _, each in parting.steps}) > 1:
        schedules = {event.scheduler for event in run.of(SchedulerMade) if event.optimizer == optimizer}
        calls = [event for event in run.events[:number] if isinstance(event, Scheduled)]
        sites = [event.site for event in calls if event.scheduler in schedules]
        made = run.made[optimizer][0].site
        return (
            sites[-1] if sites else made,
            "The ranks' learning rates differ: "
            f"{' and '.join(f'{max(each.lr):.3g}' for _, each in parting.steps)}.",
            "Give all ranks the same learning rate: all_reduce the value that drives the schedule.",
        )
    return (
        step.site,
        "The gradients of that step are equal on all ranks, but the updates differ.",
        "Use the same optimizer and the same settings on all ranks.",
    )
