"""The gradient norm of each module, and the size of each update relative to the module's weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from gradgate.checker.reports.page._drawing import NOTHING
from gradgate.checker.reports.page._run_view import Figure, RunView, curve, figure


class Norms(NamedTuple):
    """A module's norms at one step: gradient, update, and weights before the step."""

    gradient: float
    change: float
    weights: float


Curves: TypeAlias = "dict[str, dict[int, Norms]]"


def curves(view: RunView) -> Curves:
    """Return the norms by module and step. Steps are numbered from 1, across all optimizers."""
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
    """Return the figure of the gradient norms, or None if none were measured."""
    return _figure(view, lambda norms: norms.gradient, "gradient norm")


def draw_ratios(view: RunView) -> Figure | None:
    """Return the figure of update norms relative to weight norms, or None if none were measured."""
    found = _figure(
        view, lambda norms: norms.change / norms.weights if norms.weights else 0.0, "update / weight"
    )
    if found is not None:
        line = {"dash": "dot", "width": 1, "color": NOTHING}
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": 1e-3, "y1": 1e-3}
        found["layout"]["shapes"] = [{"type": "line", **ends, "line": line}]
    return found


def _figure(view: RunView, value: Callable[[Norms], float], title: str) -> Figure | None:
    def shown(norms: Norms) -> float | None:  # on a logarithmic axis
        height = value(norms)
        return height if math.isfinite(height) and height > 0 else None

    traces = [
        curve(number, module, {step: shown(points[step]) for step in sorted(points)}, "%{y:.3g}")
        for number, (module, points) in enumerate(curves(view).items())
    ]
    drawn = [height for trace in traces for height in trace["y"] if height is not None]
    if not drawn:
        return None
    ticks = {"exponentformat": "power", "dtick": 1 if max(drawn) > 30 * min(drawn) else "D2"}
    return figure(
        traces,
        legend_above=True,
        height=300 + 14 * len(traces),  # the legend needs space below the curves
        hovermode="closest",
        xaxis=view.step_axis,
        yaxis={"type": "log", "title": {"text": title}, "automargin": True, **ticks},
    )
