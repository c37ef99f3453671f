"""Questions that several rules ask about a run or its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run, once
from gradgate.events import Backward, Frame, Ids, Site


def with_line_of(site: Site, other: Site) -> Iterator[tuple[Frame, int | None]]:
    """Yield each line of a site, innermost first, and the line of another site in the same function, or None."""
    lines = {(frame.file, frame.function): frame.line for frame in other}
    return ((frame, lines.get((frame.file, frame.function))) for frame in site)


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
    """A loss: the line that back-propagates it, and where its first term is computed. A loop's line has several."""

    site: Site
    computed: Site


def loss_of(run: Run, number: int) -> Loss:
    """Return the loss of a backward call."""
    event = run.backward(number)
    return Loss(event.site, _computed(run).get((event.site, event.reached), ()))


def calls_of(run: Run, loss: Loss) -> list[Backward]:
    """Return the backward calls of a loss, in order."""
    return [run.backward(number) for number, _ in run.numbered(Backward) if loss_of(run, number) == loss]


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
    for number, _ in run.numbered(Backward):
        if run.backward(number).seen and loss_of(run, number) not in found:
            for reach in [run.backward(number).reached, *(term.reach for term in run.terms(number))]:
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
