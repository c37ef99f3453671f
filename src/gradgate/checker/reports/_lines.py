"""Lines of the user's source: the ones around a finding, and the ones that its fix changes."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import NamedTuple

from gradgate.checker.fixes import Edit, mending
from gradgate.checker.rules import Finding


class SourceLine(NamedTuple):
    """A line of source as a report shows it.

    ``number`` is 0 for a line that a fix adds. ``mark`` is "here" for the finding's own line, "-" for a line that
    the fix removes, "+" for one that it adds, and "" for context.
    """

    number: int
    mark: str
    text: str


_SKIPPED = SourceLine(0, "", "…")


def source_line(file: str, line: int) -> str:
    """Return a line of a file or notebook cell without its line end, or "" if it cannot be read."""
    return linecache.getline(file, line).rstrip("\r\n") if line > 0 else ""


def edits_of(finding: Finding) -> Sequence[Edit]:
    """Return the edits that fix a finding, in order of their lines; empty if it has no plain fix."""
    return mending(finding)


def excerpt(finding: Finding, around: int) -> list[SourceLine]:
    """Return the finding's line with its neighbours, dedented; empty if the file cannot be read."""
    if not source_line(finding.file, finding.line).strip():
        return []
    numbers = range(max(1, finding.line - around), finding.line + around + 1)
    lines = [
        SourceLine(n, "here" if n == finding.line else "", source_line(finding.file, n).expandtabs(4))
        for n in numbers
    ]
    while not lines[0].text.strip():
        del lines[0]
    while not lines[-1].text.strip():
        del lines[-1]
    return _dedented(lines)


def changes(finding: Finding, around: int) -> list[SourceLine]:
    """Return the lines that the finding's fix changes, with ``around`` lines of context; empty if it has no fix."""
    by_line = {edit.line: edit for edit in edits_of(finding)}
    lines: list[SourceLine] = []
    shown = sorted({n for line in by_line for n in range(max(1, line - around), line + around + 1)})
    for before, number in zip([0, *shown], shown, strict=False):
        if before and number > before + 1:
            lines.append(_SKIPPED)
        text, edit = source_line(finding.file, number).expandtabs(4), by_line.get(number)
        if text or edit is not None:
            lines.append(SourceLine(number, "-" if edit is not None and edit.instead else "", text))
        lines += [SourceLine(0, "+", line.expandtabs(4)) for line in (edit.lines if edit is not None else ())]
    return _dedented(lines)


def _dedented(lines: Sequence[SourceLine]) -> list[SourceLine]:
    code = [line.text for line in lines if line.text.strip() and line is not _SKIPPED]
    indent = min((len(text) - len(text.lstrip()) for text in code), default=0)
    return [line if line is _SKIPPED else line._replace(text=line.text[indent:]) for line in lines]
