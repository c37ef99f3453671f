"""A table of the estimated memory per micro-batch of a plan, compared with the whole batch."""

from __future__ import annotations

import html
from typing import NamedTuple

from gradgate.byte_sizes import format_bytes
from gradgate.checker.reports.page._drawing import USED, WASTED
from gradgate.checker.reports.page._run_view import RunView
from gradgate.events import Planned

_MOST_ROWS = 40
_CELL = "text-align:left;padding:3px 14px 3px 0;vertical-align:top"
_BAR = "display:inline-block;height:9px"
_WHOLE = f"{_BAR};width:120px;margin-right:8px;background:rgba(128,136,146,.25)"


class Row(NamedTuple):
    """A micro-batch or the whole batch: its samples, its memory at the peak, and the share of the budget."""

    name: str
    samples: int
    total_bytes: int
    share: float


def draw(view: RunView) -> str | None:
    """Return a table of the last plan as HTML, or None if there was no plan."""
    plans = view.run.of(Planned)
    if not plans:
        return None
    plan: Planned = plans[-1]
    resident = f"{format_bytes(plan.resident)} of it for parameters, gradients and optimizer state"
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in ("", "samples", "at the peak"))
    lines = "".join(map(_line, rows(plan)))
    return (
        f"<b>Budget {html.escape(format_bytes(plan.budget))}</b> {html.escape(resident)}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    )


def rows(plan: Planned) -> list[Row]:
    """Return the first micro-batches, and the whole batch."""
    parts = [
        (f"micro-batch {number}", samples, peak)
        for number, (samples, peak) in enumerate(zip(plan.samples, plan.peaks, strict=True), start=1)
    ]
    return [
        Row(name, samples, plan.resident + peak, (plan.resident + peak) / plan.budget)
        for name, samples, peak in [*parts[:_MOST_ROWS], ("the whole batch", sum(plan.samples), plan.whole)]
    ]


def _line(row: Row) -> str:
    color = USED if row.share <= 1 else WASTED
    bar = (
        f'<span style="{_BAR};width:{min(row.share, 1.0):.1%};background:{color};vertical-align:top"></span>'
    )
    memory = f'<span style="{_WHOLE}">{bar}</span>{format_bytes(row.total_bytes)}'
    cells = (row.name, f"{row.samples:,}", memory)
    return f"<tr>{''.join(f'<td style={_CELL!r}>{cell}</td>' for cell in cells)}</tr>"
