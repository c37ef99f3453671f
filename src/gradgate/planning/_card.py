"""A plan as a table, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradgate.notebook_tables import WASTED, Bar, Cell, card
from gradgate.planning._budget import written

if TYPE_CHECKING:
    from gradgate.planning._plan import Plan

_MOST_ROWS = 24


def to_html(plan: Plan) -> str:
    """Return one row for each micro-batch: its samples, and what training takes while it is run."""
    parts, stands = plan.parts, plan.standing.total_bytes
    with_lengths = bool(parts[0].length)
    head = ["micro-batch", "samples", *(["columns"] if with_lengths else []), "at the peak"]
    rows: list[list[Cell]] = []
    for number, part in enumerate(parts[:_MOST_ROWS], start=1):
        whole = stands + part.peak_bytes
        bar = Bar(whole / plan.budget_bytes, written(whole), *([WASTED] if whole > plan.budget_bytes else []))
        columns = [f"{part.length:,}"] if with_lengths else []
        rows.append([str(number), f"{len(part.indices):,}", *columns, bar])
    if len(parts) > _MOST_ROWS:
        rows.append([f"… {len(parts) - _MOST_ROWS} more"])
    foreseen = "foreseen on fake tensors" if plan.foreseen else "measured on small micro-batches"
    said = f"within {written(plan.budget_bytes)}, of which {written(stands)} stand all the time; {foreseen}"
    return card("Plan", said, rows, head=head)
