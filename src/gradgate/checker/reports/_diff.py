"""A fix as a diff of the user's lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradgate.checker.fixes import edits_for
from gradgate.checker.reports._source import source_line
from gradgate.checker.rules import Finding


class DiffLine(NamedTuple):
    """A line of source: its number, "" where it is new; its mark ("", "-", "+"); its text."""

    number: str
    mark: str
    text: str


def diff(finding: Finding, *, around: int, whole: int = 0) -> list[DiffLine]:
    """Return the lines that a fix changes, with ``around`` others above and below; [] where there is none.

    Lines that come stand below the one that they come behind. Where all changes lie within ``whole`` lines, what is
    between them is shown, too.
    """
    by_line = {edit.line: edit for edit in edits_for(finding)}
    if not by_line:
        return []
    first, last = min(by_line) - around, max(by_line) + around
    wanted = [
        number
        for number in range(max(1, first), last + 1)
        if last - first <= whole or any(abs(number - line) <= around for line in by_line)
    ]
    lines: list[DiffLine] = []
    for before, number in zip([0, *wanted], wanted, strict=False):
        if before and number > before + 1:
            lines.append(DiffLine("", "", "…"))
        text, here = source_line(finding.file, number).expandtabs(4), by_line.get(number)
        if text or here is not None:
            lines.append(DiffLine(str(number), "-" if here is not None and here.instead else "", text))
        lines += [DiffLine("", "+", line.expandtabs(4)) for line in (here.lines if here is not None else ())]
    return _to_the_left(lines)


def _to_the_left(lines: Sequence[DiffLine]) -> list[DiffLine]:
    indent = min((len(one.text) - len(one.text.lstrip()) for one in lines if one.text.strip("… ")), default=0)
    return [one if one.text == "…" else one._replace(text=one.text[indent:]) for one in lines]
