"""A report as a table, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradgate.checker.reports._layout import summary_rows, verdict
from gradgate.checker.reports._source import source_line
from gradgate.checker.reports._words import near
from gradgate.notebook_tables import Mark, card

if TYPE_CHECKING:
    from gradgate.checker.reports._report import Report

_COLORS = {"error": "#d0402f", "warning": "#c98a12", "info": "#3b7ecb"}


def to_html(report: Report) -> str:
    """Return one row for each finding, below the verdict and above what was watched."""
    found = [
        (
            Mark(f"{finding.code} {finding.category}", _COLORS[finding.severity]),
            f"{near(finding.file).rpartition('/')[2]}:{finding.line}  "
            f"{source_line(finding.file, finding.line).strip()}",
            finding.message,
            finding.advice,
        )
        for finding in report.findings
    ]
    watched = "; ".join(text for _, text in summary_rows(report.summary))
    head = ("finding", "line", "what happened", "what to write instead") if found else ()
    return card(verdict(report)[0], watched, found, head=head)
