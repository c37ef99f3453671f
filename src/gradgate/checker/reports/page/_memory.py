"""A table of the estimated memory per micro-batch of a plan, compared with the whole batch."""

from __future__ import annotations

from gradgate.byte_sizes import format_bytes
from gradgate.checker.reports.page._run_view import RunView
from gradgate.events import Planned
from gradgate.notebook_tables import USED, WASTED, Bar, Cell, card

_MOST_ROWS = 40


def draw(view: RunView) -> str | None:
    """Return a table of the last plan as HTML, or None if there was no plan."""
    plans = view.run.of(Planned)
    if not plans:
        return None
    plan: Planned = plans[-1]
    head = ("", "samples", "at the peak")
    resident = f"{format_bytes(plan.resident)} of it for parameters, gradients and optimizer state"
    return card(f"Budget {format_bytes(plan.budget)}", resident, rows(plan), head=head)


def rows(plan: Planned) -> list[list[Cell]]:
    """Return rows for the micro-batches and the whole batch, with bars for their shares of the budget."""
    parts = [
        (f"micro-batch {number}", samples, peak)
        for number, (samples, peak) in enumerate(zip(plan.samples, plan.peaks, strict=True), start=1)
    ]
    found: list[list[Cell]] = []
    for name, samples, peak in [*parts[:_MOST_ROWS], ("the whole batch", sum(plan.samples), plan.whole)]:
        total = plan.resident + peak
        bar = Bar(total / plan.budget, format_bytes(total), USED if total <= plan.budget else WASTED)
        found.append([name, f"{samples:,}", bar])
    return found
