"""A report as a table in a notebook."""

from __future__ import annotations

from gradgate.checker.reports._content import Content
from gradgate.notebook_tables import Mark, card

_COLORS = {"error": "#d0402f", "warning": "#c98a12", "note": "#3b7ecb"}


def to_html(report: Content) -> str:
    """Return the verdict, what was watched, and one row for each finding."""
    rows = [
        (
            Mark(f"{entry.finding.code} {entry.finding.category}", _COLORS[entry.severity]),
            f"{entry.place.rpartition('/')[2]}  {''.join(line.text for line in entry.source(0))}",
            entry.finding.message,
            entry.advice,
        )
        for entry in report.entries()
    ]
    watched = "; ".join(text for _, text in report.facts())
    head = ("finding", "line", "what happened", "what to write instead") if rows else ()
    return card(report.verdict()[0], watched, rows, head=head)
