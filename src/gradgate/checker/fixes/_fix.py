"""The kinds of change in a fix.

A fix is a tuple of changes. Expressions are Python source and are compared as syntax trees, so spaces, quotes and
redundant parentheses do not matter. A line number stands for the innermost statement on that line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Insert:
    """Insert statements before or after the statement on a line, at the same indentation."""

    text: str
    before: int = 0
    after: int = 0

    def __str__(self) -> str:
        return f"Insert `{self.text}` {_beside(self.before, self.after)}."


@dataclass(frozen=True)
class Move:
    """Move a statement before or after the statement on another line, and adapt the indentation.

    No edit is made if the moved statement shares a name with a statement in between, and either of the two assigns
    that name.
    """

    line: int
    before: int = 0
    after: int = 0

    def __str__(self) -> str:
        return f"Move line {self.line} {_beside(self.before, self.after)}."


@dataclass(frozen=True)
class Delete:
    """Delete the statement or decorator on a line."""

    line: int

    def __str__(self) -> str:
        return f"Delete line {self.line}."


@dataclass(frozen=True)
class Replace:
    """Replace an expression that occurs exactly once in the statement on a line.

    Parts of ``old`` that are repeated in ``new`` keep their formatting: ``Replace(3, "f(x)", "f(x).detach()")``.
    """

    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"Replace `{self.old}` by `{self.new}` in line {self.line}."


Change: TypeAlias = Insert | Move | Delete | Replace
Fix: TypeAlias = tuple[Change, ...]
"""Changes that are made all together or not at all. () if there is no safe fix."""


def _beside(before: int, after: int) -> str:
    return f"before line {before}" if before else f"after line {after}"
