"""Edits of source: lines that come, go, or change."""

from __future__ import annotations

import ast
import builtins
import keyword
import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


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
    by_line = {edit.line: edit for edit in merged(edits)}
    for number, line in enumerate(source, start=1):
        here = by_line.get(number)
        lines += [] if here is not None and here.instead else [line]
        lines += here.lines if here is not None else ()
    return lines


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return one edit for each line that changes, in order: what comes instead, then what comes behind."""
    by_line: dict[int, Edit] = {}
    for edit in sorted(edits, key=lambda edit: (edit.line, not edit.instead)):
        here = by_line.get(edit.line, replace(edit, lines=()))
        by_line[edit.line] = replace(here, lines=here.lines + edit.lines)
    return tuple(by_line.values())


def holds(file: str, edits: Sequence[Edit]) -> bool:
    """Say whether a file with the edits made is another program, and knows all names that come with them."""
    before = [line.rstrip("\r\n") for line in linecache.getlines(file)]
    after = mended(before, edits)
    if after == before:
        return False
    try:
        known = _bound(ast.parse("\n".join(after))) | _used(ast.parse("\n".join(before)))
    except SyntaxError:
        return False
    old = {name for edit in edits if edit.instead for name in _names(before[edit.line - 1])}
    new = {name for edit in edits for line in edit.lines for name in _names(line)}
    return new - old <= known


def _names(line: str) -> set[str]:
    """Return the names in a line of source; it may be a part of a statement."""
    code = re.sub(r"'[^']*'|\"[^\"]*\"", "''", line).partition("#")[0]
    found = re.finditer(r"(?<![\w.])[^\W\d]\w*(?!\w)(?!\s*=[^=])", code)
    return {one[0] for one in found} - {*keyword.kwlist, *dir(builtins)}


def _used(tree: ast.Module) -> set[str]:
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a file binds somewhere."""
    names = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for one in ast.walk(tree):
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in one.names}
        elif isinstance(one, ast.arg):
            names.add(one.arg)
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(one.name)
    return names
