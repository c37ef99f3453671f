"""Curves over the steps: losses, learning rates, norms of gradients, and relative sizes of updates."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from gradgate.checker.reports.page._run_view import Figure, RunView, escaped, figure, label_of
from gradgate.events import Backward

_ROW = 150  # pixels
_COLORS = (
    *("#2f7fc1", "#d9622b", "#2e9e6f", "#c0518f", "#d6a324", "#7a6cc4", "#3fa9b5"),
    *("#9c6b4a", "#6f7d8c", "#b0413e", "#5f9e2f", "#a26bb0", "#4a6fa5", "#c98a5e"),
)

Lines = dict[str, dict[int, float]]
"""Name of a curve -> step -> value."""


class Norms(NamedTuple):
    """A module's norms at one step: gradient, update, and weights before the step."""

    gradient: float
    change: float
    weights: float


def losses(view: RunView) -> Lines:
    """Return the mean loss of each window, for each line that calls backward."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, event in view.run.numbered(Backward):
        if isinstance(event, Backward) and event.value is not None and math.isfinite(event.value):
            step = bisect_left(view.step_numbers, number) + 1
            if step <= len(view.steps):
                found[label_of(event.site)][step].append(event.value)
    return {
        name: {step: sum(values) / len(values) for step, values in steps.items()}
        for name, steps in found.items()
    }


def rates(view: RunView) -> Lines:
    """Return the learning rates of each optimizer. Groups with equal rates share a curve."""
    found: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for step, (_, event) in enumerate(view.steps, start=1):
        for group, rate in enumerate(event.lr):
            found[event.optimizer, group][step] = rate
    named: Lines = {}
    for (optimizer, group), points in found.items():
        if points not in named.values():
            named[view.optimizer(optimizer) + (f", group {group}" if group else "")] = points
    return named


def whole_norms(view: RunView) -> Lines:
    """Return the norm of the whole gradient at each step of an optimizer, if measured."""
    found: Lines = defaultdict(dict)
    for step, (_, event) in enumerate(view.steps, start=1):
        norm = math.sqrt(sum(gradient * gradient for _, gradient, _, _ in event.norms))
        if math.isfinite(norm) and norm > 0:
            found[view.optimizer(event.optimizer)][step] = norm
    return dict(found)


def norms(view: RunView) -> dict[str, dict[int, Norms]]:
    """Return the norms by module and step. Steps are numbered from 1, across all optimizers."""
    squares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for step, (_, event) in enumerate(view.steps, start=1):
        for number, *values in event.norms:
            sums = squares[view.groups[number]][step]
            sums[:] = [total + value * value for total, value in zip(sums, values, strict=True)]
    return {
        module: {step: Norms(*map(math.sqrt, sums)) for step, sums in squares[module].items()}
        for module in view.order
        if module in squares
    }


def draw(view: RunView) -> Figure | None:
    """Return the figure of losses, rates and the whole gradient, or None if there was no step."""
    return _panels(
        view, {"loss": losses(view), "learning rate": rates(view), "gradient norm": whole_norms(view)}, _ROW
    )


def draw_gradients(view: RunView) -> Figure | None:
    """Return the figure of each module's gradient norm, or None if none was measured."""
    found = {name: {step: at.gradient for step, at in points.items()} for name, points in norms(view).items()}
    return _panels(view, {"gradient norm": found}, 280)


def draw_ratios(view: RunView) -> Figure | None:
    """Return the figure of update norms relative to weight norms, or None if none was measured."""
    found = {
        name: {step: at.change / at.weights for step, at in points.items() if at.weights}
        for name, points in norms(view).items()
    }
    return _panels(view, {"update / weight": found}, 280)


def _panels(view: RunView, panels: dict[str, Lines], height: int) -> Figure | None:
    """Return curves in panels, one below the other. A panel of positive values that differ much is logarithmic."""
    panels = {
        title: {
            name: {step: value for step, value in sorted(points.items()) if math.isfinite(value)}
            for name, points in lines.items()
        }
        for title, lines in panels.items()
        if any(lines.values())
    }
    if not panels:
        return None
    traces: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    share = 1 / len(panels)
    below, above = (0.03, 0.09) if len(panels) > 1 else (0.0, 0.0)
    legends = [14 * len(lines) if len(panels) == 1 else 0 for lines in panels.values()]
    for row, (title, lines) in enumerate(panels.items()):
        number = str(row + 1) if row else ""  # plotly's first axis has no number
        top = 1 - row * share
        axes[f"yaxis{number}"] = {
            "domain": [top - share + below, top - above],
            "title": {"text": title},
            "automargin": True,
            "fixedrange": True,
            **_scale(value for points in lines.values() for value in points.values()),
        }
        axes[f"legend{number}"] = {"orientation": "h", "x": 0, "y": top - above, "yanchor": "bottom"}
        for color, (name, points) in enumerate(lines.items()):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(points) < 60 else "lines",
                    "name": escaped(name),
                    "x": list(points),
                    "y": list(points.values()),
                    "line": {"color": _COLORS[color % len(_COLORS)], "width": 1.8},
                    "marker": {"size": 4},
                    "hovertemplate": f"step %{{x}}: {title} %{{y:.3g}}<extra>%{{fullData.name}}</extra>",
                    "yaxis": f"y{number}",
                    "legend": f"legend{number}",
                    "showlegend": True,
                }
            )
    last = f"y{len(panels)}" if len(panels) > 1 else "y"
    measured = len({step for points in [*panels.values()][-1].values() for step in points})
    return figure(
        traces,
        height=height * len(panels) + 48 + sum(legends),
        hovermode="closest",
        xaxis={**view.step_axis(measured), "range": [0.5, len(view.steps) + 0.5], "anchor": last},
        **axes,
    )


def _scale(values: Iterable[float]) -> dict[str, Any]:
    """Return the scale of an axis. A logarithmic one spans whole powers of ten, so that it carries some."""
    heights = [*values]
    if min(heights, default=0) <= 0 or max(heights) <= 10 * min(heights):
        return {"rangemode": "tozero", "nticks": 4, "exponentformat": "power"}
    ends = [math.floor(math.log10(min(heights))), math.ceil(math.log10(max(heights)))]
    return {"type": "log", "range": ends, "dtick": 1, "exponentformat": "power"}
