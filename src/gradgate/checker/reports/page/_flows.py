"""Figures of gradient flow, from the losses to the modules and steps: for the whole run, and step by step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gradgate.checker.analysis import Contribution
from gradgate.checker.reports._words import counted
from gradgate.checker.reports.page._run_view import Figure, RunView, Usage, escaped, figure, label_of
from gradgate.events import OptimizerMade

# What happened to a gradient. These colours differ on light and dark backgrounds, and for colour-blind readers.
USED, WASTED, LATE, NOTHING = "#2f7fc1", "#d9622b", "#c0418a", "#8d9299"


def faint(color: str, strength: float = 0.4) -> str:
    """Return a colour with transparency."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"


CLEARED, LEFT, UNOWNED = "cleared before a step", "left in .grad", "in no optimizer"
NO_LINE = "no gradient"
_MOST_COLUMNS = 80
_MOST_LINES = 8
USAGES: dict[Usage, tuple[str, str]] = {
    "none": ("no gradient", faint(NOTHING)),
    "used": ("used by a step", USED),
    "wasted": ("used by no step", WASTED),
    "late": ("used by the step of a later loss", LATE),
}


@dataclass
class GradientFlow:
    """The gradients that one line's backward calls add to one module, and where the gradients end up."""

    line: str
    module: str
    end: str
    usage: Usage
    parameters: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)


def flows(view: RunView) -> list[GradientFlow]:
    """Return the flows of a run, including unused gradients and parameters without a gradient."""
    found: dict[tuple[str, str, str, Usage], GradientFlow] = {}

    def add(line: str, end: str, usage: Usage, ids: frozenset[int], calls: Sequence[int]) -> None:
        for module, parameters in view.by_group(ids).items():
            key = (line, module, end, usage)
            flow = found.setdefault(key, GradientFlow(*key))
            flow.parameters |= parameters
            flow.calls.update(calls)

    for contribution in view.run.contributions:
        if (call := contribution.backward) >= 0:
            line, usage = label_of(view.run.backward(call).site), view.usage(contribution)
            for end in _ends(view, contribution):
                add(line, end, usage, contribution.atom, [call])
    # Show gradients that remain at the end of the run only if no earlier step used or cleared any.
    elsewhere = {(flow.line, flow.module) for flow in found.values() if flow.end != LEFT}
    for key in [key for key in found if key[2] == LEFT and key[:2] in elsewhere]:
        del found[key]
    for event in view.run.of(OptimizerMade):
        for group in event.groups:
            add(NO_LINE, view.optimizer(event.optimizer), "none", group.parameters - view.run.reached, ())
    return list(found.values())


def _ends(view: RunView, contribution: Contribution) -> list[str]:
    if contribution.consumed:
        steps = [view.run.stepped(number).optimizer for number in contribution.consumed]
        return list(dict.fromkeys(map(view.optimizer, steps)))
    if not contribution.atom & view.run.owned:
        return [UNOWNED]
    return [LEFT if contribution.cleared is None else CLEARED]


def draw(view: RunView) -> list[Figure]:
    """Return the Sankey diagram, if there was a backward call."""
    found = flows(view)
    if not found:
        return []
    calls: dict[str, set[int]] = defaultdict(set)
    for flow in found:
        calls[flow.line] |= flow.calls
    nodes: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)  # (column, name) -> width by colour
    links: dict[str, list[Any]] = {"source": [], "target": [], "value": [], "color": [], "customdata": []}
    for flow in sorted(found, key=lambda flow: (flow.line == NO_LINE, view.order.index(flow.module))):
        elements = view.elements(flow.parameters)
        share = len(flow.calls) / len(calls[flow.line]) if flow.calls else 1.0
        note = f"{escaped(flow.line)}<br>{escaped(flow.module)} → {flow.end}<br>"
        note += f"{counted(len(flow.parameters), 'tensor')}, {counted(elements, 'parameter')}"
        note += f", {counted(len(flow.calls), 'backward call')}" if flow.calls else ""
        color, width = USAGES[flow.usage][1], math.sqrt(max(elements, 1)) * share
        path = list(enumerate((flow.line, flow.module, flow.end)))
        for node in path:
            nodes[node][color] += width  # type: ignore[assignment]
        pale = color if flow.usage == "none" else faint(color)
        for source, target in pairwise(map(list(nodes).index, path)):
            for values, value in zip(links.values(), (source, target, width, pale, note), strict=True):
                values.append(value)
    boxes = {
        "label": [escaped(name) for _, name in nodes],
        "color": [widths.most_common(1)[0][0] for widths in nodes.values()],
        "pad": 16,
        "thickness": 14,
        "line": {"width": 0},
        "customdata": [escaped(name) for _, name in nodes],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    hover = {"hovertemplate": "%{customdata}<extra></extra>"}
    tallest = max(Counter(column for column, _ in nodes).values())
    diagram = {"type": "sankey", "arrangement": "snap", "textfont": {"size": 11}}
    diagram |= {"node": boxes, "link": links | hover}
    margin = {"l": 8, "r": 12, "t": 12, "b": 20}  # room for the label of a thin node at the bottom
    return [figure([diagram], height=max(260, 34 * tallest + 52), margin=margin)]


def draw_map(view: RunView) -> list[Figure]:
    """Return a map for each loss: its modules over the steps, of which there are at least two."""
    steps = view.step_numbers
    if len(steps) < 2:
        return []
    width = max(1, -(-len(steps) // _MOST_COLUMNS))  # steps per column
    columns = -(-len(steps) // width)
    maps: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for contribution in view.run.contributions:
        after = bisect_left(steps, contribution.backward)
        if contribution.backward < 0 or after == len(steps):
            continue  # a later step might have used the gradient
        modules = maps[label_of(view.run.backward(contribution.backward).site)]
        usage = list(USAGES).index(view.usage(contribution))
        for module in view.by_group(contribution.atom):
            row = modules.setdefault(module, [0] * columns)
            row[after // width] = max(row[after // width], usage)
    colors = [color for _, color in USAGES.values()]
    look = {
        "type": "heatmap",
        "x": [column * width + 1 for column in range(columns)],
        "zmin": 0,
        "zmax": 3,
        "colorscale": [[(number + end) / 4, color] for number, color in enumerate(colors) for end in (0, 1)],
        "showscale": False,
        "xgap": 1,
        "ygap": 2,
        "hovertemplate": "step %{x}<br>%{y}<extra></extra>",
    }
    figures = []
    for line in list(maps)[:_MOST_LINES]:
        reached = [module for module in view.order if module in maps[line]]
        rows = list(range(len(reached)))
        labels = {"tickvals": rows, "ticktext": [escaped(module) for module in reached], "ticks": ""}
        figures.append(
            figure(
                [look | {"y": rows, "z": [maps[line][module] for module in reached]}],
                title=line,
                height=24 * len(rows) + 60,
                xaxis={**view.step_axis(), "showgrid": False},
                yaxis=labels
                | {"autorange": "reversed", "automargin": True, "fixedrange": True, "showgrid": False},
            )
        )
    return figures
