"""What figures are made of: a run with its parameters grouped by module, labels, and a frame for plotly."""

from __future__ import annotations

import functools
import html
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from gradgate.checker.analysis import Contribution, Run, StepWindow
from gradgate.checker.reports._content import source_line
from gradgate.checker.reports._words import short_path
from gradgate.events import Ids, Log, Site, Stepped

_MOST_GROUPS = 18
_WIDEST = 34

Figure: TypeAlias = "dict[str, Any]"
"""A figure as plotly.js reads it, without colours for text and background: the page supplies those."""

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
        """The groups by name, numbers in names by their values."""

        def key(group: str) -> list[tuple[int, str]]:
            return [(int(part) if part.isdecimal() else -1, part) for part in group.split(".")]

        return sorted(set(self.groups.values()), key=key)

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
        site = self.run.events[contribution.backward].site
        for step in contribution.consumed:
            window = self._windows.get(step)
            last = window.micro[-1] if window is not None and window.micro else -1
            between = bisect_left(self.step_numbers, last) - bisect_left(
                self.step_numbers, contribution.backward
            )
            if self.run.events[last].site != site and between > 0:
                return "late"
        return "used"

    @functools.cached_property
    def _windows(self) -> dict[int, StepWindow]:
        return {window.step: window for window in self.run.windows}

    @functools.cached_property
    def steps(self) -> list[tuple[int, Stepped]]:
        """The steps of all optimizers, with their positions among the events."""
        return [(number, event) for number, event in enumerate(self.run.events) if isinstance(event, Stepped)]

    @functools.cached_property
    def step_numbers(self) -> list[int]:
        """The positions of the steps among the events."""
        return [number for number, _ in self.steps]

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


def figure(traces: Sequence[Any], **layout: Any) -> Figure:
    """Return a figure of traces."""
    plain = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
    }
    return {"data": list(traces), "layout": plain | layout}


def rows(names: Sequence[str], **axis: Any) -> dict[str, Any]:
    """Return a y axis that has named rows at 0, 1, 2, ... from top to bottom."""
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names), "ticks": ""}
    return {
        "autorange": "reversed",
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        **ticks,
        **axis,
    }


def _module(name: str, depth: int) -> str:
    path = name.split(".")
    return ".".join(path[: min(depth, len(path) - 1)] or path) or "unnamed"
