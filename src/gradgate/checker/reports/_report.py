"""The report of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradgate.checker.reports._baseline import fingerprint
from gradgate.checker.reports._content import Content
from gradgate.checker.reports._forms import checked_path, form_of, written
from gradgate.checker.reports._select import Selection, ignores_in
from gradgate.checker.reports._summary import summarized
from gradgate.checker.reports._text import to_text
from gradgate.checker.reports._unmoved import unmoved
from gradgate.checker.reports._words import counted
from gradgate.checker.rules import Finding, check, check_ranks, in_order
from gradgate.events import Log


@dataclass(frozen=True, slots=True, repr=False)
class Report(Content):
    """The findings of a run by file and line, and a summary of the run.

    Attributes:
        script: the script's name on the command line; "" for a loop in this process.
        findings: sorted by file and line.
        summary: how much of the run was watched.
        logs: the recorded events, one log per process. The figures of the page are drawn from them.
    """

    def save(self, path: str | Path) -> None:
        """Write the report to a file in the format of its extension: .html, .json, .sarif or .txt.

        The .html page is one file that opens offline. It shows the findings, the flow of gradients, the times
        of an update, and norms over the steps. It needs ``pip install 'gradgate[show]'``.

        Raises:
            OptionError: the extension is unknown, the folder does not exist, or the page needs a package that is
                not installed.
        """
        path = checked_path(path, where="save")
        path.write_text(written(self, form_of(path) or "text") + "\n", encoding="utf-8")

    def __str__(self) -> str:
        return to_text(self)

    def __repr__(self) -> str:
        found = self.tally() or "no findings"
        return f"Report({self.script or 'a loop'}: {found} after {counted(self.summary.steps, 'step')})"


def report_on(
    logs: Sequence[Log],
    *,
    script: str = "",
    outcome: str = "finished",
    exit_code: int | None = None,
    selection: Selection | None = None,
    baseline: Collection[str] | None = None,
    notes: Sequence[str] = (),
    edited: bool = False,
) -> Report:
    """Check the logs of a run's processes, and return one report.

    ``baseline`` holds fingerprints of known findings, which are left out. ``notes`` are sentences for the
    summary. The exit code is None for a loop in this process. ``edited``: the script failed with the edits of
    ``--fix``, and only with them.
    """
    selection = selection or Selection()
    findings = merged([(log, check(log)) for log in logs], check_ranks(logs))
    ignores = [ignore for file in sorted(_files(logs)) for ignore in ignores_in(file)]
    used = [ignore for ignore in ignores if any(map(ignore.covers, findings))]
    selected = [finding for finding in findings if selection.takes(finding)]
    audible = [finding for finding in selected if not any(ignore.covers(finding) for ignore in used)]
    kept = [finding for finding in audible if fingerprint(finding) not in (baseline or ())]
    notes = [*notes, *(note for ignore in ignores for note in ignore.misnamed())]
    if not any(finding.severity != "info" for finding in findings):
        notes += [sentence for log in logs for sentence in unmoved(log)]
    summary = replace(
        summarized(logs, outcome, notes, exit_code=exit_code),
        edited=edited,
        silenced=len(selected) - len(audible),
        unused=tuple(str(each) for each in ignores if each not in used and not any(each.misnamed())),
        known=len(audible) - len(kept),
        gone=len(set(baseline or ()) - set(map(fingerprint, findings))),
    )
    return Report(script, tuple(kept), summary, tuple(logs))


def _files(logs: Sequence[Log]) -> set[str]:
    """Return the source files of all events."""
    sites = {event.site for log in logs for event in log.events}
    return {frame.file for site in sites for frame in site}


def merged(by_log: Sequence[tuple[Log, Sequence[Finding]]], across: Sequence[Finding] = ()) -> list[Finding]:
    """Merge findings with the same code and line into one finding, whose evidence lists the ranks.

    All ranks run the same loop, so the merged count is the largest count of any rank, not the sum. ``across`` holds
    findings from comparing ranks. They are dropped if a rank's own log shows the same finding.
    """
    if len(by_log) == 1:
        return list(by_log[0][1])
    found: dict[tuple[str, int, int, str], list[tuple[Log, Finding]]] = {}
    for log, findings in by_log:
        for finding in findings:
            found.setdefault(in_order(finding), []).append((log, finding))
    for finding in across:
        found.setdefault(in_order(finding), [(by_log[0][0], finding)])
    return [_folded(same) for _, same in sorted(found.items(), key=lambda item: item[0])]


def _folded(same: Sequence[tuple[Log, Finding]]) -> Finding:
    most = max((finding for _, finding in same), key=lambda finding: finding.count)
    if any(log.world > 1 for log, _ in same):
        where = {"ranks": sorted({log.rank for log, _ in same})}
        return replace(most, evidence={**most.evidence, **where})
    if len(same) > 1:
        return replace(most, evidence={**most.evidence, "processes": len(same)})
    return most
