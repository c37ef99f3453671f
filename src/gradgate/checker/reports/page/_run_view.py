"""A run as the figures need it: its parameters grouped by module, and labels for lines of code."""

from __future__ import annotations

import functools
import html
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from gradgate.checker.analysis import Contribution, Run, Window
from gradgate.checker.reports._lines import source_line
from gradgate.checker.reports._words import short_path
from gradgate.events import Ids, Log, Site, Stepped

_MOST_GROUPS = 18
_WIDEST = 34

Usage: TypeAlias = Literal["none", "used", "wasted", "late"]
"""What happened to a gradient: none came, a step used it, no step did, or the step of a later loss did."""


class RunView:
    """A run with its parameters grouped by module.

    Args:
        log: of the process that got furthest.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.run = Run(log)

    @functools.cached_property
    def groups(self) -> Mapping[int, str]:
        """The module to show for each parameter, as deep as the number of rows allows."""
        names = {number: parameter.name for number, parameter in self.log.parameters.items()}
        deepest = max((name.count(".") + 1 for name in names.values()), default=1)
        for depth in range(deepest, 1, -1):
            groups = {number: _module(name, depth) for number, name in names.items()}
            if len(set(groups.values())) <= _MOST_GROUPS:
                return groups
        return {number: _module(name, 1) for number, name in names.items()}

    @functools.cached_property
    def order(self) -> list[str]:
        """The groups in the order in which their parameters appeared; numbered siblings by their numbers."""
        groups = dict.fromkeys(self.groups[number] for number in sorted(self.groups))
        appeared: dict[str, int] = {}
        for group in groups:
            for prefix in _prefixes(group):
                appeared.setdefault(prefix, len(appeared))

        def key(group: str) -> list[int]:
            parts = zip(group.split("."), _prefixes(group), strict=True)
            return [int(part) if part.isdecimal() else appeared[prefix] for part, prefix in parts]

        return sorted(groups, key=key)

    def by_group(self, ids: Iterable[int]) -> dict[str, Ids]:
        """Return parameters by their group."""
        found: dict[str, set[int]] = defaultdict(set)
        for number in ids:
            if number in self.groups:
                found[self.groups[number]].add(number)
        return {group: frozenset(found[group]) for group in self.order if group in found}

    def elements(self, ids: Iterable[int]) -> int:
        """Return how many elements parameters have together."""
        return sum(math.prod(self.log.parameters[number].shape) for number in ids if number in self.groups)

    def usage(self, contribution: Contribution) -> Usage:
        """Return whether a step used what a backward call added; "late" if a later loss's step did."""
        if not contribution.consumed:
            return "wasted"
        site, steps = self.run.events[contribution.backward].site, [number for number, _ in self.steps]
        for step in contribution.consumed:
            window = self._windows.get(step)
            last = window.micro[-1] if window is not None and window.micro else -1
            between = bisect_left(steps, last) - bisect_left(steps, contribution.backward)
            if self.run.events[last].site != site and between > 0:
                return "late"
        return "used"

    @functools.cached_property
    def _windows(self) -> dict[int, Window]:
        return {window.step: window for window in self.run.windows}

    @functools.cached_property
    def steps(self) -> list[tuple[int, Stepped]]:
        """The steps of all optimizers, with their positions among the events."""
        return [(number, event) for number, event in enumerate(self.run.events) if isinstance(event, Stepped)]

    def optimizer(self, number: int) -> str:
        """Return an optimizer's name and kind."""
        made = self.run.made.get(number, [])
        kind = f" ({made[0].kind})" if made else ""
        return f"{self.log.optimizers.get(number, 'optimizer')}{kind}"


def label_of(site: Site) -> str:
    """Return a label for a line of the user's code: its text and its place."""
    if not site:
        return "a line of a library"
    frame = site[0]
    text = source_line(frame.file, frame.line).strip()
    text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    place = f"{short_path(frame.file).rpartition('/')[2]}:{frame.line}"
    return f"{text}  {place}" if text else place


def escaped(text: str) -> str:
    """Return a text with its markup escaped, because plotly renders some tags."""
    return html.escape(text, quote=False)


def _module(name: str, depth: int) -> str:
    path = name.split(".")
    return ".".join(path[: min(depth, len(path) - 1)] or path) or "unnamed"


def _prefixes(group: str) -> list[str]:
    path = group.split(".")
    return [".".join(path[:end]) for end in range(1, len(path) + 1)]
