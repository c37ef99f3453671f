"""Edits of a file: lines to insert, delete or replace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Edit:
    """New lines to insert after a line of a file, or to replace that line.

    Attributes:
        line: number of the line, from 1.
        lines: the new lines, without line ends.
        instead: replace the line. If ``lines`` is empty, the line is deleted.
    """

    line: int
    lines: tuple[str, ...] = ()
    instead: bool = True


def apply(source: Sequence[str], edits: Iterable[Edit]) -> list[str]:
    """Return the edited lines of a file.

    Args:
        source: the lines, without line ends. Not modified.
        edits: edits of this file, from any number of findings.
    """
    lines: list[str] = []
    by_line = {edit.line: edit for edit in merged(edits)}
    for number, line in enumerate(source, start=1):
        edit = by_line.get(number)
        lines += [] if edit is not None and edit.instead else [line]
        lines += edit.lines if edit is not None else ()
    return lines


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Merge edits of the same line. Return one edit per changed line, in order."""
    by_line: dict[int, Edit] = {}
    for edit in sorted(edits, key=lambda edit: (edit.line, not edit.instead)):
        known = by_line.get(edit.line, replace(edit, lines=()))
        by_line[edit.line] = replace(known, lines=known.lines + edit.lines)
    return tuple(by_line.values())


def between(before: Sequence[str], after: Sequence[str]) -> tuple[Edit, ...]:
    """Return the edits that turn ``before`` into ``after``."""
    edits: list[Edit] = []
    for kind, first, end, start, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        new = tuple(after[start:stop])
        if kind == "insert" and first == 0:
            edits.append(Edit(1, (*new, before[0])))
        elif kind == "insert":
            edits.append(Edit(first, new, instead=False))
        elif kind != "equal":
            edits += [Edit(first + 1, new), *(Edit(line) for line in range(first + 2, end + 1))]
    return merged(edits)
