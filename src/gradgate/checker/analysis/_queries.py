"""Questions that several rules ask about a run or its source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run, once
from gradgate.checker.analysis._source import FUNCTIONS, path_to, spans
from gradgate.events import Backward, Combined, Frame, Ids, Parameter, Site


def with_line_of(site: Site, other: Iterable[Frame]) -> Iterator[tuple[Frame, int | None]]:
    """Yield each line of a site, innermost first, and the line of another site in the same function, or None."""
    lines = {(frame.file, frame.function): frame.line for frame in other}
    return ((frame, lines.get((frame.file, frame.function))) for frame in site)


def shared_line(site: Site, other: Iterable[Frame]) -> Frame | None:
    """Return the innermost line of a site whose function also contains a line of the other site, or None."""
    return next((frame for frame, line in with_line_of(site, other) if line is not None), None)


def made_line(parameter: Parameter, like: Iterable[Parameter]) -> Frame:
    """Return the innermost line that made a parameter but not the parameters that it replaced."""
    others = {frame for other in like for frame in other.made}
    return next((frame for frame in parameter.made if frame not in others), parameter.made[0])


def calling_line(sites: Iterable[Site], backward: Site) -> Frame | None:
    """Return the innermost line that all uses of some parameters share, and that is in no module's ``forward``.

    If the uses share no line, return the line of the first use.
    """
    several = [site for site in sites if site]
    if not several:
        return None
    shared = [
        frame for frame in several[0] if all(frame in site for site in several) and frame not in backward
    ]
    lines = shared or [frame for frame in several[0] if frame not in backward] or list(several[0])
    outside = [frame for frame in lines if frame.function not in ("forward", "__call__")]
    return (outside or lines)[0]


def condition_around(site: Site, beside: Site) -> Frame | None:
    """Return the ``if`` that decides whether ``site`` runs but not whether ``beside`` runs.

    The search goes from the innermost frame of ``site`` outwards. The result is the first ``if`` that contains the
    running line but not the line of ``beside`` in the same function.
    """
    for frame, other in with_line_of(site, beside):
        for node in reversed(path_to(frame.file, frame.line)):
            condition = isinstance(node, ast.If) and frame.line > node.lineno
            if other is not None and spans(node, other):
                if condition or isinstance(node, (*FUNCTIONS, ast.For, ast.While)):
                    break
            elif condition:
                return frame._replace(line=getattr(node, "lineno", 0))
        if other is not None:
            return None
    return None


def module_without(run: Run, number: int, others: Iterable[int]) -> list[str]:
    """Return the outermost module that holds a parameter but none of the others: ["net", "features"], or [].

    An object that is no module may hold the module: the path then begins with it, but is longer.
    """
    parts = run.name(number).split(".")[:-1]
    paths = (parts[:length] for length in range(1, len(parts) + 1))
    roots = _beginnings(run)
    modules = (
        path for path in paths if any(".".join(path[:length]) in roots for length in range(len(path) + 1))
    )
    return next((each for each in modules if within(run, ".".join(each)).isdisjoint(others)), [])


@once
def _beginnings(run: Run) -> set[str]:
    """Return the outermost modules, by the variables that hold them: "net", or "agent.net"."""
    return {parameter.root for parameter in run.parameters.values()} - {""}


@once
def within(run: Run, path: str) -> Ids:
    """Return the parameters of a module, such as "net.features", or the parameter with this name."""
    return frozenset(number for number in run.parameters if f"{run.name(number)}.".startswith(f"{path}."))


def whole_module(run: Run, ids: Ids) -> str:
    """Return the name of the outermost module that holds exactly these parameters, or ""."""
    path = ".".join(module_without(run, min(ids), run.parameters.keys() - ids)) if ids else ""
    return path if ids <= within(run, path) and all(map(str.isidentifier, path.split("."))) else ""


def windows_of(run: Run, optimizer: int) -> list[StepWindow]:
    """Return the windows of an optimizer's steps."""
    return [window for window in run.windows if window.optimizer == optimizer]


def repeats(run: Run, window: StepWindow) -> Ids:
    """Return the parameters whose new gradient was added to a gradient that this optimizer already used."""
    stepped = run.stepped(window.step)
    if not stepped.seen:
        return frozenset()  # this log does not record writes to gradients
    fresh = {part.atom for part in window.fresh}
    again = [
        part.atom
        for part in window.stale
        if part.atom in fresh and not part.touched and part.factor == 1 and part.backward >= 0
    ]
    return frozenset().union(*again) - stepped.frozen


class Loss(NamedTuple):
    """A loss: the line that back-propagates it (a line may have several), and where its first term is computed."""

    site: Site
    computed: Site


def loss_of(run: Run, number: int) -> Loss:
    """Return the loss of a backward call."""
    event = run.backward(number)
    return Loss(event.site, _computed(run).get((event.site, event.reached), ()))


def calls_of(run: Run, loss: Loss) -> list[Backward]:
    """Return the backward calls of a loss, in order."""
    return [event for number, event in run.numbered(Backward) if loss_of(run, number) == loss]


@once
def _computed(run: Run) -> dict[tuple[Site, Ids], Site]:
    found: dict[tuple[Site, Ids], Site] = {}
    for event in run.of(Backward):
        if event.terms:
            found.setdefault((event.site, event.reached), event.terms[0].site)
    return found


@once
def own_losses(run: Run, optimizer: int) -> set[Loss]:
    """Return the losses that reach only this optimizer's parameters, or have a term that does."""
    found: set[Loss] = set()
    for number, event in run.numbered(Backward):
        if event.seen and loss_of(run, number) not in found:
            for reach in [event.reached, *(term.reach for term in run.terms(number))]:
                owners = [run.owners[each] for each in reach & run.owned]
                if owners and all(optimizer in each for each in owners):
                    found.add(loss_of(run, number))
    return found


def joined(sets: set[Ids]) -> list[Ids]:
    """Join the sets that have a parameter in common."""
    found: list[Ids] = []
    for ids in sets:
        joined = ids.union(*(each for each in found if each & ids))
        found = [*(each for each in found if not each & ids), joined]
    return found


@dataclass(frozen=True)
class Combination:
    """The events of one kind at one line.

    Attributes:
        how: the kind, see :class:`Combined`.
        numbers: the events' numbers in the run.
        first: the first of the events.
        ids: trained parameters behind the values.
        times: how often the losses' lines call backward.
    """

    how: str
    site: Site
    numbers: tuple[int, ...]
    first: Combined
    ids: Ids
    times: int


def combinations(run: Run, kinds: Container[str]) -> Iterator[Combination]:
    """Yield the lines that combine values in one of these ways, if trained parameters are behind the values."""
    found: dict[tuple[str, Site], dict[int, Combined]] = defaultdict(dict)
    for number, event in run.numbered(Combined):
        if event.how in kinds and event.site and event.parameters & run.owned:
            found[event.how, event.site][number] = event
    for (how, site), events in found.items():
        ids = run.owned.intersection(frozenset().union(*(event.parameters for event in events.values())))
        losses = {event.backward for event in events.values()}
        times = sum(event.site in losses for event in run.of(Backward))
        yield Combination(how, site, tuple(events), events[min(events)], ids, times)
