"""The kinds of change that make up a fix, as plain values.

A rule states its fix as a tuple of these. Expressions are Python source and are compared by what they mean, so
spaces, quotes and redundant parentheses do not matter. A line stands for the innermost statement it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Insert:
    """Insert statements before or after the statement of a line, at its indentation."""

    text: str
    before: int = 0
    after: int = 0

    def __str__(self) -> str:
        return f"Insert `{self.text}` {_beside(self.before, self.after)}."


@dataclass(frozen=True)
class Move:
    """Move a statement before or after the statement of another line, and indent it accordingly.

    No edit is made if a statement in between reads a name that the moved one assigns, or assigns one that it reads.
    """

    line: int
    before: int = 0
    after: int = 0

    def __str__(self) -> str:
        return f"Move line {self.line} {_beside(self.before, self.after)}."


@dataclass(frozen=True)
class Delete:
    """Delete a statement, or the decorator that stands on the line."""

    line: int

    def __str__(self) -> str:
        return f"Delete line {self.line}."


@dataclass(frozen=True)
class Replace:
    """Replace an expression of the line's statement, if it occurs there exactly once.

    Parts of ``old`` that ``new`` repeats keep their formatting: ``Replace(3, "f(x)", "f(x).detach()")``.
    """

    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"Replace `{self.old}` by `{self.new}` in line {self.line}."


@dataclass(frozen=True)
class PutUnder:
    """Put a statement under a header such as ``with torch.no_grad():``."""

    line: int
    header: str

    def __str__(self) -> str:
        return f"Put line {self.line} under `{self.header}`."


@dataclass(frozen=True)
class Unwrap:
    """Delete the header of a block, such as that of a ``with``, and keep its statements."""

    line: int

    def __str__(self) -> str:
        return f"Delete the header in line {self.line} and keep its statements."


Change: TypeAlias = Insert | Move | Delete | Replace | PutUnder | Unwrap
Fix: TypeAlias = tuple[Change, ...]
"""Changes that are made together, all or none; () where a finding has no fix that is safe to make."""


def _beside(before: int, after: int) -> str:
    return f"before line {before}" if before else f"after line {after}"
