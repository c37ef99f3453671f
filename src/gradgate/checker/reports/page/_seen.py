"""What the figures are drawn from: a run, its parameters in groups by module, and names for lines of code."""

from __future__ import annotations

import functools
import html
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from gradgate.checker.analysis import Contribution, Run, Window
from gradgate.checker.reports._source import source_line
from gradgate.checker.reports._words import near
from gradgate.events import Ids, Log, Site, Stepped

_MOST_GROUPS = 18
_WIDEST = 34

Fate: TypeAlias = Literal["used", "wasted", "late", "none"]
"""What became of a gradient: a step used it, none did, one used it beside a later loss; or none came."""


class Seen:
    """A run as figures need it.

    Args:
        log: of the process that went furthest.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.run = Run(log)

    @functools.cached_property
    def groups(self) -> Mapping[int, str]:
        """The module that stands for each parameter: as deep as leaves no more than can be told apart."""
        names = {number: one.name for number, one in self.log.parameters.items()}
        known = [name.split(".") for name in names.values() if name]
        deepest = max((len(path) for path in known), default=1)
        for depth in range(deepest, 0, -1):
            found = {number: _module(name, depth) for number, name in names.items()}
            if len(set(found.values())) <= _MOST_GROUPS or depth == 1:
                return found
        return {}

    @functools.cached_property
    def order(self) -> list[str]:
        """The groups, in the order in which their parameters came up; numbered ones by their numbers."""
        found = dict.fromkeys(self.groups[number] for number in sorted(self.groups))
        place: dict[str, int] = {}
        for group in found:
            path = group.split(".")
            for depth in range(1, len(path) + 1):
                place.setdefault(".".join(path[:depth]), len(place))

        def key(group: str) -> list[int]:
            path = group.split(".")
            parts = enumerate(path, start=1)
            return [int(one) if one.isdecimal() else place[".".join(path[:end])] for end, one in parts]

        return sorted(found, key=key)

    def by_group(self, ids: Iterable[int]) -> dict[str, Ids]:
        """Return parameters by their group."""
        found: dict[str, set[int]] = defaultdict(set)
        for number in ids:
            if number in self.groups:
                found[self.groups[number]].add(number)
        return {group: frozenset(found[group]) for group in self.order if group in found}

    def numbers_in(self, ids: Iterable[int]) -> int:
        """Return how many numbers parameters hold."""
        return sum(math.prod(self.log.parameters[one].shape) for one in ids if one in self.log.parameters)

    def fate(self, one: Contribution) -> Fate:
        """Return what became of what a backward call added; "late" is what went into a later loss's step."""
        if not one.consumed:
            return "wasted"
        own = self.run.events[one.backward].site
        for step in one.consumed:
            window = self._by_step.get(step)
            last = window.micro[-1] if window is not None and window.micro else -1
            between = bisect_left(self._numbers, last) - bisect_left(self._numbers, one.backward)
            if self.run.events[last].site != own and between > 0:
                return "late"
        return "used"

    @functools.cached_property
    def _numbers(self) -> list[int]:
        return [number for number, _ in self.steps]

    @functools.cached_property
    def _by_step(self) -> dict[int, Window]:
        return {window.step: window for window in self.run.windows}

    def optimizer(self, number: int) -> str:
        """Return an optimizer's name and kind."""
        made = self.run.made.get(number, [])
        kind = f" ({made[0].kind})" if made else ""
        return f"{self.log.optimizers.get(number, 'optimizer')}{kind}"

    @functools.cached_property
    def steps(self) -> list[tuple[int, Stepped]]:
        """The steps of all optimizers: their numbers among the events, and what they were."""
        return [(number, event) for number, event in enumerate(self.run.events) if isinstance(event, Stepped)]


def line_of(site: Site) -> str:
    """Return a line of the user's code for a label: what stands there, and where."""
    if not site:
        return "a line of a library"
    frame = site[0]
    text = source_line(frame.file, frame.line).strip()
    text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    place = f"{near(frame.file).rpartition('/')[2]}:{frame.line}"
    return f"{text}  {place}" if text else place


def safe(text: str) -> str:
    """Return a text that plotly shows as it is: it would take some tags for markup."""
    return html.escape(text, quote=False)


def _module(name: str, depth: int) -> str:
    if not name:
        return "unnamed"
    path = name.split(".")
    return ".".join(path[: min(depth, len(path) - 1)] or path)
