"""Questions that several rules ask about a run or its source."""

from __future__ import annotations

from collections.abc import Iterator

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


@once
def lines_of_own_losses(run: Run, optimizer: int) -> set[Site]:
    """Return the lines whose loss, or a term of it, reaches only this optimizer's parameters."""
    found: set[Site] = set()
    for number, event in run.numbered(Backward):
        if run.backward(number).seen and event.site not in found:
            for reach in [run.backward(number).reached, *(term.reach for term in run.terms(number))]:
                owners = [run.owners[each] for each in reach & run.owned]
                if owners and all(optimizer in each for each in owners):
                    found.add(event.site)
    return found
