"""The norm of each module's gradient, and by what share of itself each step moved it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from gradgate.checker.reports.page._seen import Seen, safe
from gradgate.checker.reports.page._theme import LINES, figure
from gradgate.notebook_tables import NOTHING

_MOST_POINTS = 400


class Norms(NamedTuple):
    """A module at one step: of its gradient, of its change, and of its values before."""

    gradient: float
    change: float
    values: float


Curves: TypeAlias = "dict[str, dict[int, Norms]]"


def curves(seen: Seen) -> Curves:
    """Return the norms by module and step; steps of all optimizers are counted together, from 1."""
    squares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for step, (_, event) in enumerate(seen.steps, start=1):
        for number, *norms in event.norms:
            into = squares[seen.groups[number]][step]
            for place, norm in enumerate(norms):
                into[place] += norm * norm
    return {
        module: {step: Norms(*map(math.sqrt, sums)) for step, sums in squares[module].items()}
        for module in seen.order
        if module in squares
    }


def draw_gradients(seen: Seen) -> Any | None:
    """Return the norms of gradients, as the steps were given them; None where none were measured."""
    return _drawn(seen, lambda norms: norms.gradient, "gradient norm")


def draw_ratios(seen: Seen) -> Any | None:
    """Return the size of each change as a share of the values; None where none were measured."""
    return _drawn(
        seen, lambda norms: norms.change / norms.values if norms.values else 0.0, "update / weight", 1e-3
    )


def _drawn(seen: Seen, value: Callable[[Norms], float], title: str, guide: float | None = None) -> Any | None:
    traces: list[dict[str, Any]] = []
    drawn: list[float] = []
    for number, (module, points) in enumerate(curves(seen).items()):
        every = -(-len(points) // _MOST_POINTS)
        kept = sorted(points)[::every]
        heights = [value(points[step]) for step in kept]
        drawn += [one for one in heights if math.isfinite(one) and one > 0]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(kept) < 60 else "lines",
                "name": safe(module),
                "x": kept,
                "y": [one if math.isfinite(one) and one > 0 else None for one in heights],
                "line": {"color": LINES[number % len(LINES)], "width": 1.8},
                "marker": {"size": 4},
                "hovertemplate": "step %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
            }
        )
    if not drawn:
        return None
    guides = []
    if guide is not None:
        guides = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": guide,
                "y1": guide,
                "line": {"dash": "dot", "width": 1, "color": NOTHING},
            }
        ]
    return figure(
        traces,
        height=330,
        shapes=guides,
        legend={"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0},
        hovermode="closest",
        xaxis={"title": {"text": "optimizer step"}, "automargin": True, "tickformat": "d"},
        yaxis={
            "type": "log",
            "title": {"text": title},
            "automargin": True,
            "exponentformat": "power",
            "dtick": 1 if max(drawn) > 30 * min(drawn) else "D2",
        },
    )
