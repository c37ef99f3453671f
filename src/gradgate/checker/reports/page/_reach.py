"""Which loss reaches which module, step by step, and whether a step used the gradient."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Any

from gradgate.checker.reports.page._plot import Figure, stacked
from gradgate.checker.reports.page._run_view import RunView, Usage, escaped, label_of
from gradgate.notebook_tables import LATE, USED, WASTED

_MOST_COLUMNS = 80
_MOST_LINES = 8
_USAGES: dict[Usage, tuple[str, str]] = {
    "none": ("no gradient", "rgba(128,136,146,0.14)"),
    "used": ("used by a step", USED),
    "wasted": ("used by no step", WASTED),
    "late": ("used by the step of a later loss", LATE),
}


def draw(view: RunView) -> Figure | None:
    """Return one map for each loss, modules down and steps across, or None if there was no step."""
    steps = [number for number, _ in view.steps]
    if not steps:
        return None
    width = -(-len(steps) // _MOST_COLUMNS)  # steps in a column
    columns = -(-len(steps) // width)
    maps: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for contribution in view.run.contributions:
        after = bisect_left(steps, contribution.backward)
        if contribution.backward < 0 or after == len(steps):
            continue  # the step that would have used it may not have come yet
        rows = maps[label_of(view.run.backward(contribution.backward).site)]
        usage = list(_USAGES).index(view.usage(contribution))
        for module in view.by_group(contribution.atom):
            row = rows.setdefault(module, [0] * columns)
            row[after // width] = max(row[after // width], usage)
    if not maps:
        return None
    lines = list(maps)[:_MOST_LINES]
    traces = {escaped(line): _map(line, maps[line], view.order, width) for line in lines}
    return stacked(traces, [24.0 * len(maps[line]) for line in lines], "optimizer step")


def _map(line: str, rows: dict[str, list[int]], order: list[str], width: int) -> dict[str, Any]:
    modules = [module for module in order if module in rows]
    words = [word for word, _ in _USAGES.values()]
    scale = [[(n + end) / 4, color] for n, (_, color) in enumerate(_USAGES.values()) for end in (0, 1)]
    return {
        "type": "heatmap",
        "x": [column * width + 1 for column in range(len(rows[modules[0]]))],
        "y": [escaped(module) for module in modules],
        "z": [rows[module] for module in modules],
        "customdata": [
            [f"{escaped(line)} → {escaped(module)}<br>{words[usage]}" for usage in rows[module]]
            for module in modules
        ],
        "zmin": 0,
        "zmax": 3,
        "colorscale": scale,
        "showscale": False,
        "xgap": 1,
        "ygap": 2,
        "hovertemplate": "step %{x}<br>%{customdata}<extra></extra>",
    }
