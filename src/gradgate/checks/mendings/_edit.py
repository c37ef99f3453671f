"""Edits of source: lines that come, go, or change."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Lines of source that come behind a line, or instead of it; none instead of a line: it goes.

    Attributes:
        line: number of the line, from 1.
        lines: what comes, without ends of lines.
        instead: whether the line itself goes.
    """

    line: int
    lines: tuple[str, ...] = ()
    instead: bool = True


def mended(source: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """Return a file's lines with the edits made.

    Args:
        source: the lines, without their ends.
        edits: of this file, from one finding or from several.

    Returns:
        the lines, as many as are left; ``source`` is not changed.
    """
    lines: list[str] = []
    by_line: dict[int, list[Edit]] = {}
    for edit in edits:
        by_line.setdefault(edit.line, []).append(edit)
    for number, line in enumerate(source, start=1):
        here = by_line.get(number, [])
        if not any(edit.instead for edit in here):
            lines.append(line)
        lines += [new for edit in here for new in edit.lines]
    return lines


def parses(file: str, edits: Sequence[Edit]) -> bool:
    """Say whether a file is still a program with the edits made."""
    try:
        ast.parse("\n".join(mended([line.rstrip("\r\n") for line in linecache.getlines(file)], edits)))
    except SyntaxError:
        return False
    return True
