"""The content that all formats of a report share."""

from __future__ import annotations

import functools
import linecache
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from gradgate.checker.analysis._run import enumerated
from gradgate.checker.fixes import Edit, edits_for
from gradgate.checker.reports._summary import Held, Summary
from gradgate.checker.reports._words import counted, duration, place_of
from gradgate.checker.rules import ENOUGH, Finding, Rule
from gradgate.events import Log

NOUNS = {"error": "error", "warning": "warning", "info": "note"}


class SourceLine(NamedTuple):
    """A line of source in a report.

    ``number`` is 0 for a line that the fix adds. ``mark`` is "here" for the finding's own line, "-" for a removed
    line, "+" for an added line, and "" for context.
    """

    number: int
    mark: str
    text: str


# Keys of the evidence whose value is the number of another line in the same file.
_CONFLICTS = ("leaking_line", "again_in_line", "term_line", "added_at", "backward_line")

_SKIPPED = SourceLine(0, "", "…")


def source_line(file: str, line: int) -> str:
    """Return a line of a file or notebook cell, or "" if the file can't be read."""
    return linecache.getline(file, line).rstrip("\r\n") if line > 0 else ""


@dataclass(frozen=True)
class Entry:
    """The parts of a finding that every format of a report shows."""

    finding: Finding

    @property
    def place(self) -> str:
        """The file, relative to the working directory, and the line."""
        return place_of(self.finding.file, self.finding.line)

    @property
    def severity(self) -> str:
        """The severity in words: "error", "warning" or "note"."""
        return NOUNS[self.finding.severity]

    @property
    def rule(self) -> str:
        """The category of the rule, and the number of occurrences if there are several."""
        times = f", {counted(self.finding.count, 'time')}" if self.finding.count > 1 else ""
        return f"{self.finding.category}{times}"

    @property
    def help(self) -> str:
        """The command that explains the rule; "" if the rule itself raised an error."""
        return "" if self.finding.code == "GG000" else f"gradgate explain {self.finding.code}"

    @functools.cached_property
    def edits(self) -> Sequence[Edit]:
        """The edits that fix the finding, by line; empty if no fix can be made automatically."""
        return edits_for(self.finding)

    def source(self, around: int) -> list[SourceLine]:
        """Return the finding's line with context, and the line that conflicts with it; [] for unreadable files."""
        file, line, evidence = self.finding.file, self.finding.line, self.finding.evidence

        def is_blank(number: int) -> bool:
            return not source_line(file, number).strip()

        if is_blank(line):
            return []
        shown = list(range(max(1, line - around), line + around + 1))
        while is_blank(shown[0]):
            del shown[0]
        while is_blank(shown[-1]):
            del shown[-1]
        conflicts = [evidence[key] for key in _CONFLICTS if around and key in evidence]
        first = [number for number in conflicts if not is_blank(number)][:1]
        return self._lines(sorted({*shown, *first}), {})

    def changes(self, around: int) -> list[SourceLine]:
        """Return the lines that the fix changes, with context; empty if there is no fix."""
        edits = {edit.line: edit for edit in self.edits}
        shown = {n for line in edits for n in range(max(1, line - around), line + around + 1)}
        return self._lines(sorted(shown), edits)

    def _lines(self, shown: Sequence[int], edits: Mapping[int, Edit]) -> list[SourceLine]:
        """Return the lines and their edits, dedented, with a mark at each gap."""
        lines: list[SourceLine] = []
        for before, number in zip([0, *shown], shown, strict=False):
            if before and number > before + 1:
                lines.append(_SKIPPED)
            text, edit = source_line(self.finding.file, number).expandtabs(4), edits.get(number)
            mark = "" if edits or number != self.finding.line else "here"
            if text or edit is not None or not edits:
                lines.append(SourceLine(number, "-" if edit is not None and edit.instead else mark, text))
            lines += [SourceLine(0, "+", each.expandtabs(4)) for each in (() if edit is None else edit.lines)]
        return _dedented(lines)


@dataclass(frozen=True, slots=True)
class Content:
    """The findings and the summary of a run, and the sentences made from them."""

    script: str
    findings: tuple[Finding, ...]
    summary: Summary
    logs: tuple[Log, ...] = field(default=(), compare=False)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The warnings and errors."""
        return tuple(finding for finding in self.findings if finding.severity != "info")

    def entries(self) -> list[Entry]:
        """Return an entry for each finding."""
        return [Entry(finding) for finding in self.findings]

    def tally(self) -> str:
        """Return the number of findings by severity: "1 error and 2 notes", or ""."""
        counts = Counter(entry.severity for entry in self.entries())
        return enumerated([counted(counts[noun], noun) for noun in NOUNS.values() if counts[noun]])

    def verdict(self) -> tuple[str, str]:
        """Return a sentence about the outcome of the run, and the worst severity or "ok"."""
        summary, name, found = self.summary, self.script or "the loop", self.tally()
        if how := summary.ending:
            when = f"after {counted(summary.steps, 'step')}" if summary.began else "before training began"
            if summary.edited:
                return f"With these edits, {name} {how} {when}. The edits are undone.", "error"
            until = f" Found up to that point: {found}." if found else " No mistakes found up to that point."
            return f"{name} {how} {when}.{until if summary.began or found else ''}", "error"
        short = f"too short: some rules need {ENOUGH} steps" if summary.too_short else ""
        if found:
            worst = min((entry.severity for entry in self.entries()), key=list(NOUNS.values()).index)
            return f"Found {found}.{'' if self.faults or not short else f' This run is {short}.'}", worst
        if not summary.began:
            return f"Nothing to check: {name} ran no backward call and no optimizer step.", "warning"
        new = "new " if summary.known else ""
        if short:
            return f"No {new}mistakes found, but this run is {short}.", "warning"
        if summary.notes:
            return f"No {new}mistakes found, but not everything could be checked.", "warning"
        return f"No {new}mistakes found.", "ok"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the summary as rows of a label and a text. A row without a label continues the row above."""
        summary = self.summary
        if summary.began:
            yield "watched", _watched(summary)
            for text, times in Counter(map(_holds, summary.optimizers)).items():
                yield "", f"{times} x {text}" if times > 1 else text
            if summary.unowned:
                yield "", _holds(summary.unowned)
            share = summary.watching_seconds / summary.seconds if summary.seconds else 0.0
            yield "took", f"{duration(summary.seconds)}, {share:.0%} of it spent on watching"
        for note in summary.notes:
            yield "note", note
        if summary.silenced:
            yield "silenced", f"{counted(summary.silenced, 'finding')}, by `# gradgate: ignore`"
        if summary.unused:
            yield (
                "unused",
                f"`# gradgate: ignore` at {enumerated(list(summary.unused))}: nothing was found there",
            )
        if summary.known or summary.gone:
            known = f"{counted(summary.known, 'finding')} in the baseline"
            gone = f"; {counted(summary.gone, 'other baseline finding')} no longer found"
            yield "known", known + gone * bool(summary.gone)


def _watched(summary: Summary) -> str:
    per_step, rest = divmod(summary.backwards, summary.steps) if summary.steps else (1, 0)
    each = f" ({per_step} for each step)" if per_step > 1 and not rest else ""
    text = f"{counted(summary.steps, 'step')}, {counted(summary.backwards, 'backward call')}{each}"
    if summary.processes > 1:
        text += f" in {'each' if summary.equal_counts else 'the longest'} of {summary.processes} processes"
    if summary.ended_apart:
        text += f"; {counted(summary.ended_apart, 'tensor')} ended with different values on the ranks"
    return text + ("; stopped early" if summary.outcome == "stopped" else "")


def _holds(held: Held) -> str:
    name = held.name or "in no optimizer"
    kind = f" ({held.kind})" if held.kind else ""
    return f"{name}{kind}: {counted(held.parameters, 'tensor')}, {counted(held.elements, 'parameter')}"


def _dedented(lines: Sequence[SourceLine]) -> list[SourceLine]:
    code = [line.text for line in lines if line.text.strip() and line is not _SKIPPED]
    indent = min((len(text) - len(text.lstrip()) for text in code), default=0)
    return [line if line is _SKIPPED else line._replace(text=line.text[indent:]) for line in lines]


def rule_page(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    return f"# {rule.code}: {rule.name}\n\n*Severity: {rule.severity}.* {_fenced(rule.doc.strip())}\n"


def _fenced(text: str) -> str:
    """Turn indented code into fenced code, which renderers highlight."""
    lines: list[str] = []
    for is_code, part in groupby(text.splitlines(), key=lambda line: line.startswith("    ")):
        block = list(part)
        lines += ["```python", *(line[4:] for line in block), "```"] if is_code else block
    return "\n".join(lines).replace("```\n\n```python\n", "\n")
