"""Places at which losses combine values in a way that may be a mistake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from gradgate.checker.analysis._run import Run
from gradgate.events import Backward, Combined, Ids, Site


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

    @property
    def measured(self) -> dict[str, Any]:
        """The arguments of ``Rule.finding`` that follow from this combination."""
        return {"count": self.times, "evidence": {"parameters": len(self.ids)}, "about": self.ids}


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
