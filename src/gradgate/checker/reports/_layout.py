"""What a report says, line by line: pieces of text, each with the part that it plays."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, TypeAlias

from gradgate.checker.reports._diff import diff
from gradgate.checker.reports._report import Report
from gradgate.checker.reports._source import excerpt
from gradgate.checker.reports._summary import Held, Summary
from gradgate.checker.reports._words import counted, lasting, listed, near
from gradgate.checker.rules import Finding

_AROUND = 2  # lines of source above and below
_MOST_CHANGED = 8  # lines of a mending that are shown
_NOUNS = {"error": "error", "warning": "warning", "info": "note"}


class Span(NamedTuple):
    """A piece of a line. ``part`` says what it is; the theme gives that a colour."""

    text: str
    part: str = ""


Line: TypeAlias = list[Span]


def laid_out(report: Report, width: int) -> Iterator[Line]:
    """Yield the lines of a report that are no wider than ``width``, source code and long paths excepted."""
    for file, findings in groupby(report.findings, key=lambda finding: finding.file):
        name = near(file)
        yield [Span(f"── {name} ", "rule"), Span("─" * max(3, width - len(name) - 4), "rule")]
        yield []
        for finding in findings:
            yield from _finding(finding, width)
            yield []
    yield from _end(report, width)


def _finding(finding: Finding, width: int) -> Iterator[Line]:
    often = f", {counted(finding.count, 'time')}" if finding.count > 1 else ""
    yield [
        Span(f"{near(finding.file)}:{finding.line}", "place"),
        Span("  "),
        Span(finding.severity if finding.severity != "info" else "note", finding.severity),
        Span("  "),
        Span(finding.code, finding.severity),
        Span(f" {finding.category}{often}"),
    ]
    lines = excerpt(finding.file, finding.line, _AROUND)
    if lines:
        yield []
    for number, text in lines:
        here = number == finding.line
        gutter = f"  {'❱' if here else ' '} {number:4} │ "
        yield [
            Span(gutter, finding.severity if here else "gutter"),
            Span(_fitting(text, width), "source" if here else "around"),
        ]
    yield []
    yield from _paragraph("", finding.message, width)
    yield from _paragraph("why", finding.why, width)
    yield from _paragraph("fix", finding.advice, width)
    yield from _mended(finding, width)


def _mended(finding: Finding, width: int) -> Iterator[Line]:
    """Yield what goes and what comes, where few lines of the user's mend it."""
    lines = diff(finding, around=0)
    if not lines or len(lines) > _MOST_CHANGED:
        return
    yield []
    for number, mark, text in lines:
        part = {"-": "gone", "+": "new"}.get(mark, "around")
        # What is to be written stands there whole, to be copied.
        yield [
            Span(f"  {mark or ' '} {number:>4} │ ", part),
            Span(text if mark == "+" else _fitting(text, width), part),
        ]


def _fitting(text: str, width: int) -> str:
    room = width - 11
    return text if len(text) <= room else text[: room - 1] + "…"


def _paragraph(label: str, text: str, width: int) -> Iterator[Line]:
    """Yield a text behind its label. A line that is indented is code, and is left as it is."""
    indent = "  " if not label else "       "
    first = Span(f"  {label:5}" if label else indent, "label")
    for line in text.splitlines():
        kept = [line] if line[:1].isspace() else _wrapped(line, width - len(indent))
        for part in kept:
            yield [first, Span(part, "" if label else "message")]
            first = Span(indent)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _end(report: Report, width: int) -> Iterator[Line]:
    if report.findings:
        yield [Span("─" * width, "rule")]
    text, part = verdict(report)
    for line in _wrapped(text, width):
        yield [Span(line, part)]
    for label, text in summary_rows(report.summary):
        yield from _labelled(label, text, width)


def summary_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what was watched, a label and a text at a time; a label that is empty goes on with the one before."""
    if summary.began:
        yield "watched", _watched(summary)
        alike = Counter(map(_holds, summary.optimizers))
        for text, times in alike.items():
            yield "", f"{times} x {text}" if times > 1 else text
        if summary.unowned:
            yield "", _holds(summary.unowned)
        yield "took", _took(summary)
    for note in summary.notes:
        yield "note", note
    if summary.silenced:
        yield "silenced", f"{counted(summary.silenced, 'finding')}, by `# gradgate: ignore`"


def _labelled(label: str, text: str, width: int) -> Iterator[Line]:
    for part in _wrapped(text, width - 9):
        yield [Span(f"{label:9}", "label"), Span(part)]
        label = ""


def verdict(report: Report) -> tuple[str, str]:
    """Return the sentence that says how it went, and the part that it plays."""
    summary, name = report.summary, report.script or "the loop"
    steps = counted(summary.steps, "step")
    when = f"after {steps}" if summary.began else "before training began"
    found = [
        counted(number, noun)
        for severity, noun in _NOUNS.items()
        if (number := sum(finding.severity == severity for finding in report.findings))
    ]
    if summary.outcome in ("failed", "interrupted"):
        how = "failed" if summary.outcome == "failed" else "was interrupted"
        end = f"Until then: {listed(found)}." if found else "Until then no mistake was seen."
        return f"{name} {how} {when}. {end if summary.began or found else ''}".rstrip(), "error"
    if found:
        worst = min((finding.severity for finding in report.findings), key=list(_NOUNS).index)
        return f"Found {listed(found)}.", worst
    if not summary.began:
        return f"Nothing to judge: {name} made no backward call and no optimizer step.", "warning"
    if summary.notes:
        return "No mistakes found in what could be judged.", "warning"
    return "No mistakes found.", "ok"


def _watched(summary: Summary) -> str:
    per_step, rest = divmod(summary.backwards, summary.steps) if summary.steps else (1, 0)
    each = f" ({per_step} for each step)" if per_step > 1 and not rest else ""
    text = f"{counted(summary.steps, 'step')}, {counted(summary.backwards, 'backward call')}{each}"
    if summary.processes > 1:
        text += f" in {'each' if summary.equal else 'the longest'} of {summary.processes} processes"
    return text + ("; ended by --max-steps" if summary.outcome == "stopped" else "")


def _took(summary: Summary) -> str:
    share = summary.watching_seconds / summary.seconds if summary.seconds else 0.0
    return f"{lasting(summary.seconds)}, {share:.0%} of it spent on watching"


def _holds(held: Held) -> str:
    what = f"{counted(held.parameters, 'parameter')} with {counted(held.elements, 'number')}"
    if not held.name and not held.kind:
        return f"in no optimizer: {what}"
    return f"{held.name or 'optimizer'}{f' ({held.kind})' if held.kind else ''}: {what}"
