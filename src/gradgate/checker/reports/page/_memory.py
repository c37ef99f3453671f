"""What the micro-batches of a plan take, beside the budget and the batch uncut."""

from __future__ import annotations

from typing import Any

from gradgate.checker.reports.page._seen import Seen
from gradgate.checker.reports.page._theme import figure
from gradgate.events import Planned
from gradgate.notebook_tables import NOTHING, USED, WASTED

_MOST_BARS = 40


def draw(seen: Seen) -> Any | None:
    """Return the bars of the last plan that was made; None where there was none."""
    plans = seen.run.of(Planned)
    return _drawn(plans[-1]) if plans else None


def _drawn(plan: Planned) -> Any:
    unit, size = next(
        (name, 1024**power)
        for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "bytes"))
        if plan.whole >= 1024**power or not power
    )
    several = list(zip(plan.peaks, plan.samples, strict=True))[:_MOST_BARS]
    names = [f"micro-batch {number}" for number in range(1, len(several) + 1)]
    rows = [*names, "the batch uncut"]
    passes = [*(peak for peak, _ in several), plan.whole]
    samples = [*(count for _, count in several), sum(plan.samples)]
    said = [f"{count:,} samples" for count in samples]

    def bar(name: str, sizes: list[int], colors: Any) -> dict[str, Any]:
        return {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": rows,
            "x": [one / size for one in sizes],
            "marker": {"color": colors, "line": {"width": 0}},
            "customdata": said,
            "hovertemplate": f"{name}: %{{x:.4g}} {unit}<br>%{{customdata}}<extra>%{{y}}</extra>",
        }

    fits = [USED if plan.resident + one <= plan.budget else WASTED for one in passes]
    return figure(
        [
            bar("parameters, gradients, optimizer state", [plan.resident] * len(rows), NOTHING),
            bar("one forward and backward pass", passes, fits),
        ],
        height=100 + 26 * len(rows),
        barmode="stack",
        bargap=0.25,
        legend={"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        margin={"l": 8, "r": 12, "t": 36, "b": 8},
        shapes=[
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": plan.budget / size,
                "x1": plan.budget / size,
                "line": {"dash": "dot", "width": 2, "color": WASTED},
            }
        ],
        annotations=[
            {
                "text": f"budget {plan.budget / size:.4g} {unit}",
                "x": plan.budget / size,
                "xanchor": "left",
                "y": 0,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"color": WASTED},
            }
        ],
        xaxis={"title": {"text": unit}, "automargin": True, "fixedrange": True, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "automargin": True, "ticks": "", "fixedrange": True},
    )
