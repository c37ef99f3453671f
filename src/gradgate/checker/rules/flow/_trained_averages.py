"""Finds averages of a network that a loss and an optimizer train, too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._queries import calling_line, within
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import flow_reach as texts
from gradgate.events import Backward, Frame, Ids, Stepped

_NETWORK = 4  # networks with fewer tensors may be tied by copying
_LEAST = 2  # times that other code changed a parameter between two watched steps


def trained_averages(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report each network that starts as a trained network's copy, and that both a step and other code change."""
    for (path, source), (average, trained) in _averages(run).items():
        losses = [each for each in run.of(Backward) if each.reached & average]
        reach = [each for loss in losses for each in (loss.reached, *(term.reach for term in loss.terms))]
        if any(ids & average and not ids & trained for ids in reach):
            continue  # it has a loss of its own, and is only pulled towards the other network
        first = next((each for each in losses if each.uses), None)
        line = _line(first, average) if first is not None else None
        optimizers = {run.optimizer(number) for number in run.optimizers_of(average)}
        if line is None:
            continue
        name = " and ".join(sorted(optimizers))
        yield rule.say(
            line,
            texts.AVERAGE,
            count=len(losses),
            about=average,
            path=path,
            source=source,
            optimizer=name,
        )


def _averages(run: Run) -> dict[tuple[str, str], tuple[Ids, Ids]]:
    """Return the networks that both steps and other code change, each with the network that it is a copy of."""
    steps = [event for event in run.of(Stepped) if event.seen]
    times = Counter(number for event in steps for number in event.changed)
    moved = union(event.moved for event in steps)
    sources = grouped((_kind(run, number), number) for number in moved - times.keys())
    pairs = grouped(
        (ends, (number, source))
        for number in moved
        if times[number] >= _LEAST
        for source in sources.get(_kind(run, number), ())
        if _start_equal(run, number, source) and all(ends := _networks(run, number, source))
    )
    found = {}
    for ends, several in pairs.items():
        average, source = (frozenset(column) for column in zip(*several, strict=True))
        complete = {number for number in within(run, ends[0]) if run.parameters[number].trainable} <= average
        if complete and len(average) >= _NETWORK:
            found[ends] = average, source
    return found


def _kind(run: Run, number: int) -> tuple[str, tuple[int, ...]]:
    return run.name(number).rpartition(".")[2], run.parameters[number].shape


def _start_equal(run: Run, one: int, other: int) -> bool:
    began = [run.parameters[number].began for number in (one, other)]
    return None not in began and math.isclose(*began, rel_tol=1e-4)  # type: ignore[arg-type]


def _networks(run: Run, one: int, other: int) -> tuple[str, str]:
    """Return the paths of the modules in which two parameters have the same place."""
    first, second = (run.name(number).split(".") for number in (one, other))
    while first and second and first[-1] == second[-1]:
        first.pop(), second.pop()
    return ".".join(first), ".".join(second)


def _line(loss: Backward, ids: Ids) -> Frame | None:
    """Return the line that runs a network, outside of modules that the loss also uses for other parameters."""
    sites = [site for number, site in loss.uses if number in ids and site]
    others = {frame for number, site in loss.uses if number not in ids for frame in site}
    own = (frame for frame in (sites or [()])[0] if all(frame in site for site in sites))
    return next((frame for frame in own if frame not in others), calling_line(sites, loss.site))
