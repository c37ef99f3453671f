"""The gradient norm of each module, and the size of each update relative to the module's weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from gradgate.checker.reports.page._run_view import SERIES, Figure, RunView, escaped, figure
from gradgate.notebook_tables import NOTHING


class Norms(NamedTuple):
    """Norms of a module at one step: of its gradient, of its change, and of its weights before."""

    gradient: float
    change: float
    weights: float


Curves: TypeAlias = "dict[str, dict[int, Norms]]"


def curves(view: RunView) -> Curves:
    """Return the norms by module and step. Steps of all optimizers are counted together, from 1."""
    squares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for step, (_, event) in enumerate(view.steps, start=1):
        for number, *norms in event.norms:
            sums = squares[view.groups[number]][step]
            sums[:] = [total + norm * norm for total, norm in zip(sums, norms, strict=True)]
    return {
        module: {step: Norms(*map(math.sqrt, sums)) for step, sums in squares[module].items()}
        for module in view.order
        if module in squares
    }


def draw_gradients(view: RunView) -> Figure | None:
    """Return the gradient norms that the steps received, or None if none were measured."""
    return _figure(view, lambda norms: norms.gradient, "gradient norm")


def draw_ratios(view: RunView) -> Figure | None:
    """Return the size of each update relative to the weights, or None if none were measured."""
    found = _figure(
        view, lambda norms: norms.change / norms.weights if norms.weights else 0.0, "update / weight"
    )
    if found is not None:
        line = {"dash": "dot", "width": 1, "color": NOTHING}
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": 1e-3, "y1": 1e-3}
        found["layout"]["shapes"] = [{"type": "line", **ends, "line": line}]
    return found


def _figure(view: RunView, value: Callable[[Norms], float], title: str) -> Figure | None:
    traces: list[dict[str, Any]] = []
    drawn: list[float] = []
    for number, (module, points) in enumerate(curves(view).items()):
        steps = sorted(points)
        heights = [value(points[step]) for step in steps]
        shown = [height if math.isfinite(height) and height > 0 else None for height in heights]
        drawn += [height for height in shown if height is not None]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(steps) < 60 else "lines",
                "name": escaped(module),
                "x": steps,
                "y": shown,
                "line": {"color": SERIES[number % len(SERIES)], "width": 1.8},
                "marker": {"size": 4},
                "hovertemplate": "step %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
            }
        )
    if not drawn:
        return None
    ticks = {"exponentformat": "power", "dtick": 1 if max(drawn) > 30 * min(drawn) else "D2"}
    return figure(
        traces,
        height=300 + 14 * len(traces),  # the legend takes its rows from the curves
        legend={"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        margin={"l": 8, "r": 12, "t": 36, "b": 8},
        xaxis={"title": {"text": "optimizer step"}, "automargin": True, "tickformat": "d"},
        yaxis={"type": "log", "title": {"text": title}, "automargin": True, **ticks},
    )
