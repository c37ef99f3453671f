"""Which loss reaches which module, step by step, and whether a step used it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Any

from gradgate.checker.reports.page._seen import Fate, Seen, line_of, safe
from gradgate.checker.reports.page._theme import stacked
from gradgate.notebook_tables import LATE, USED, WASTED

_MOST_COLUMNS = 80
_MOST_LINES = 8
_STATES: tuple[Fate, ...] = ("none", "used", "wasted", "late")
_WORDS = (
    "no gradient",
    "reached, and used by a step",
    "reached, and used by no step",
    "reached, and used by the step of a later loss",
)
_NONE = "rgba(128,136,146,0.14)"


def draw(seen: Seen) -> Any | None:
    """Return one map for each loss, modules down and steps across; None where no step was seen."""
    steps = [number for number, _ in seen.steps]
    if not steps:
        return None
    width = -(-len(steps) // _MOST_COLUMNS)  # steps in a column
    columns = -(-len(steps) // width)
    maps: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for one in seen.run.contributions:
        after = bisect_left(steps, one.backward)
        if one.backward < 0 or after == len(steps):
            continue  # what comes behind the last step may have been meant for the next
        rows = maps[line_of(seen.run.backward(one.backward).site)]
        for module in seen.by_group(one.atom):
            row = rows.setdefault(module, [0] * columns)
            row[after // width] = max(row[after // width], _STATES.index(seen.fate(one)))
    if not maps:
        return None
    lines = list(maps)[:_MOST_LINES]
    traces = [_trace(line, maps[line], seen.order, width, columns) for line in lines]
    heights = [24.0 * len(maps[line]) for line in lines]
    return stacked(traces, [safe(line) for line in lines], heights, "optimizer step")


def _trace(
    line: str, rows: dict[str, list[int]], order: list[str], width: int, columns: int
) -> dict[str, Any]:
    modules = [module for module in order if module in rows]
    return {
        "type": "heatmap",
        "x": [column * width + 1 for column in range(columns)],
        "y": [safe(module) for module in modules],
        "z": [rows[module] for module in modules],
        "customdata": [
            [f"{safe(line)} → {safe(module)}<br>{_WORDS[one]}" for one in rows[module]] for module in modules
        ],
        "zmin": 0,
        "zmax": 3,
        "colorscale": [
            [(number + end) / 4, color]
            for number, color in enumerate((_NONE, USED, WASTED, LATE))
            for end in (0, 1)
        ],
        "showscale": False,
        "xgap": 1,
        "ygap": 2,
        "hovertemplate": "step %{x}<br>%{customdata}<extra></extra>",
    }
