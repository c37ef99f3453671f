"""Shared by the figures: a run with its parameters grouped by module, labels, and parts of plotly figures."""

from __future__ import annotations

import functools
import html
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from gradgate.checker.analysis import Contribution, Run, StepWindow
from gradgate.checker.reports._content import source_line
from gradgate.checker.reports._summary import distinct_names
from gradgate.checker.reports._words import place_of
from gradgate.events import Ids, Log, Site, Stepped

_MOST_GROUPS = 18
_WIDEST = 28
_MOST_TICKS = 12
_NUMBERED = re.compile(r"(?P<before>(?:[^.]*[^.\d][^.]*\.)*)(?P<number>\d+)(?P<after>(?:\..*)?)")

Figure: TypeAlias = "dict[str, Any]"
"""A plotly.js figure, its title and its key. The page adds colours, and fits labels to its width."""

Usage: TypeAlias = Literal["none", "used", "wasted", "late"]
"""The use of a gradient. "late": by the step of a later loss. "wasted": by no step. "none": no gradient exists."""


class RunView:
    """The run of the process that got furthest, with its parameters grouped by module."""

    def __init__(self, log: Log) -> None:
        self.log, self.run = log, Run(log)

    def step_axis(self) -> dict[str, Any]:
        """Return the x axis of steps."""
        # Without a tick at each step, plotly would also mark halves.
        ticks: dict[str, Any] = {"dtick": 1} if len(self.steps) <= _MOST_TICKS else {}
        return {"title": {"text": "optimizer step"}, "fixedrange": True, "tickformat": "d", **ticks}

    @functools.cached_property
    def groups(self) -> Mapping[int, str]:
        """The module to show for each parameter.

        If there are too many modules for a figure, parameters are grouped by outer modules, or numbered blocks are
        combined: "h.0", ..., "h.47" become "h.0-47".
        """
        names = {number: parameter.name for number, parameter in self.log.parameters.items()}
        deepest = max((name.count(".") + 1 for name in names.values()), default=1)
        by_depth = [{n: _module(name, depth) for n, name in names.items()} for depth in range(deepest, 0, -1)]
        ranges = _ranges(set(by_depth[0].values()))
        together = [{n: ranges(module) for n, module in groups.items()} for groups in by_depth]
        fitting = [each for each in (*by_depth, *together) if len(set(each.values())) <= _MOST_GROUPS]
        return max(fitting, key=lambda groups: len(set(groups.values())), default=by_depth[-1])

    @functools.cached_property
    def order(self) -> list[str]:
        """The groups sorted by name. Numbers in names are sorted by value."""

        def key(group: str) -> tuple[list[tuple[int, str]], str]:
            starts = [part.partition("-")[0] for part in group.split(".")]  # of "0-47", 0
            return [(int(start) if start.isdecimal() else -1, start) for start in starts], group

        return sorted(set(self.groups.values()), key=key)

    def by_group(self, ids: Iterable[int]) -> dict[str, Ids]:
        """Return the parameters of each group."""
        found: dict[str, set[int]] = defaultdict(set)
        for number in ids:
            if number in self.groups:
                found[self.groups[number]].add(number)
        return {group: frozenset(found[group]) for group in self.order if group in found}

    def elements(self, ids: Iterable[int]) -> int:
        """Return the total number of elements."""
        return sum(math.prod(self.log.parameters[number].shape) for number in ids if number in self.groups)

    def usage(self, contribution: Contribution) -> Usage:
        """Return whether a step used a backward call's gradient. "late" means the step of a later loss."""
        if not contribution.consumed:
            return "wasted"
        site = self.run.events[contribution.backward].site
        for step in contribution.consumed:
            window = self._windows.get(step)
            last = window.micro[-1] if window is not None and window.micro else -1
            before, after = (bisect_left(self.step_numbers, each) for each in (contribution.backward, last))
            if self.run.events[last].site != site and before < after:
                return "late"
        return "used"

    @functools.cached_property
    def _windows(self) -> dict[int, StepWindow]:
        return {window.step: window for window in self.run.windows}

    @functools.cached_property
    def steps(self) -> list[tuple[int, Stepped]]:
        """The steps of all optimizers, each with its index in the events."""
        return list(self.run.numbered(Stepped))

    @functools.cached_property
    def step_numbers(self) -> list[int]:
        """The indices of the steps in the events."""
        return [number for number, _ in self.steps]

    def optimizer(self, number: int) -> str:
        """Return an optimizer's name and kind."""
        made = self.run.made.get(number, [])
        kind = f" ({made[0].kind})" if made else ""
        return f"{self._optimizer_names.get(number, 'optimizer')}{kind}"

    @functools.cached_property
    def _optimizer_names(self) -> Mapping[int, str]:
        return distinct_names(self.log)


def label_of(site: Site) -> str:
    """Return a label for a line of the user's code: its text and location."""
    if not site:
        return "a line of a library"
    frame = site[0]
    text = source_line(frame.file, frame.line).strip()
    text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    place = place_of(frame.file, frame.line).rpartition("/")[2]
    return f"{text}  {place}" if text else place


def escaped(text: str) -> str:
    """Escape markup, because plotly renders some tags."""
    return html.escape(text, quote=False)


def figure(traces: Sequence[Any], *, title: str = "", key: Sequence[Any] = (), **layout: Any) -> Figure:
    """Return a figure with the common layout. ``key`` holds pairs of a name and a colour."""
    plain = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
        "margin": {"l": 8, "r": 12, "t": 12, "b": 48},
    }
    return {"title": title, "key": list(key), "data": list(traces), "layout": plain | layout}


def _module(name: str, depth: int) -> str:
    path = name.split(".")
    return ".".join(path[: min(depth, len(path) - 1)] or path) or "unnamed"


def _ranges(modules: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces the first number in a module's name by a range: "h.3" becomes "h.0-47"."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for module in modules:
        if found := _NUMBERED.fullmatch(module):
            numbers[found["before"]].append(int(found["number"]))

    def ranged(module: str) -> str:
        found = _NUMBERED.fullmatch(module)
        if found is None or not (all_of := numbers.get(found["before"])) or min(all_of) == max(all_of):
            return module
        return f"{found['before']}{min(all_of)}-{max(all_of)}{found['after']}"

    return ranged
