"""A report: the findings of a run, and what was watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradgate.checker.fixes import can_edit
from gradgate.checker.reports._merge import merged
from gradgate.checker.reports._select import Selection, misnamed, silenced
from gradgate.checker.reports._summary import Summary, summarized
from gradgate.checker.rules import Finding, check, check_ranks
from gradgate.events import Log


@dataclass(frozen=True, slots=True)
class Report:
    """What is wrong with a run, by file and line, and how much of it was watched.

    Attributes:
        script: what was run, as it was named; "" for a loop in one's own process.
        findings: sorted by file and line.
        summary: what was watched.
        logs: all that was seen, of each process: what the page's figures are drawn from.
    """

    script: str
    findings: tuple[Finding, ...]
    summary: Summary
    logs: tuple[Log, ...] = field(default=(), repr=False, compare=False)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are more than a note: warnings and errors."""
        return tuple(finding for finding in self.findings if finding.severity != "info")

    def save(self, path: str | Path) -> None:
        """Write the report to a file; its ending says how: .html, .json, .sarif, or .txt.

        The page (.html) is one file that opens anywhere, offline: the findings, where gradient flows, a window's
        timeline, norms over the steps. It needs ``pip install 'gradgate[show]'``.

        Raises:
            OptionError: the ending is another one, the folder is not there, or what makes the page is missing.
        """
        from gradgate.checker.reports._save import save

        save(self, path)

    def __str__(self) -> str:
        from gradgate.checker.reports._text import to_text

        return to_text(self)

    def _repr_html_(self) -> str:
        from gradgate.checker.reports._card import to_html

        return to_html(self)


def report_on(
    logs: Sequence[Log], *, script: str = "", outcome: str = "finished", selection: Selection | None = None
) -> Report:
    """Judge the logs of a run's processes, and put what they show into one report."""
    selection = selection or Selection()
    findings = merged([(log, check(log)) for log in logs], check_ranks(logs))
    chosen = [finding for finding in findings if selection.takes(finding)]
    heard = [finding for finding in chosen if not silenced(finding)]
    return Report(
        script=script,
        findings=tuple(heard),
        summary=summarized(
            logs,
            outcome=outcome,
            silenced=len(chosen) - len(heard),
            notes=[*(note for finding in heard for note in misnamed(finding)), *_without_edits(heard)],
        ),
        logs=tuple(logs),
    )


def _without_edits(findings: Sequence[Finding]) -> list[str]:
    """Say once that fixes are shown as text only, where what makes edits is not installed."""
    if can_edit() or not any(finding.fix for finding in findings):
        return []
    return ["Fixes are shown as text only: their edits need LibCST, pip install 'gradgate[cli]'."]
