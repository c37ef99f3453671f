"""The estimated memory of a plan's micro-batches, beside the budget and the whole batch."""

from __future__ import annotations

from gradgate.checker.reports.page._plot import Figure, bar_figure, bars, dotted
from gradgate.checker.reports.page._run_view import RunView
from gradgate.events import Planned
from gradgate.notebook_tables import NOTHING, USED, WASTED

_MOST_BARS = 40
_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("bytes", 1))
WHOLE = "the whole batch"


def draw(view: RunView) -> Figure | None:
    """Return the bars of the last plan, or None if there was none."""
    plans = view.run.of(Planned)
    if not plans:
        return None
    plan: Planned = plans[-1]
    unit, size = next((name, size) for name, size in _UNITS if plan.whole >= size or size == 1)
    parts = list(zip(plan.peaks, plan.samples, strict=True))[:_MOST_BARS]
    parts.append((plan.whole, sum(plan.samples)))
    names = [*(f"micro-batch {number}" for number in range(1, len(parts))), WHOLE]
    notes = [f"{samples:,} samples" for _, samples in parts]
    standing, budget = plan.standing / size, plan.budget / size
    fits = [USED if plan.standing + peak <= plan.budget else WASTED for peak, _ in parts]
    label = {"text": f"budget {budget:.4g} {unit}", "showarrow": False, "font": {"color": WASTED}}
    place = {"x": budget, "xanchor": "left", "y": 0, "yref": "paper", "yanchor": "bottom"}
    return bar_figure(
        [
            bars(
                "parameters, gradients, optimizer state",
                NOTHING,
                unit,
                [(name, 0.0, standing, note) for name, note in zip(names, notes, strict=True)],
            ),
            bars(
                "one forward and backward pass",
                fits,
                unit,
                [
                    (name, standing, peak / size, note)
                    for name, (peak, _), note in zip(names, parts, notes, strict=True)
                ],
            ),
        ],
        unit,
        dict(zip(names, names, strict=True)),
        26,
        shapes=[dotted("x", budget, WASTED)],
        annotations=[label | place],
    )
