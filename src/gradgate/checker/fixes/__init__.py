"""Fixes that rules propose, and the source edits that carry them out.

A rule states a fix as a tuple of changes (:class:`Insert`, :class:`Move`, :class:`Replace`, ...), together with its
advice. :func:`edits_for` makes the changes in the file's syntax tree and returns the edited lines.
"""

from __future__ import annotations

import linecache
from typing import Protocol

from gradgate.checker.fixes._edit import Edit, apply, between
from gradgate.checker.fixes._fix import Change, Delete, Fix, Insert, Move, Replace
from gradgate.checker.fixes._patch import Rewritten, patch, rewritten_files
from gradgate.checker.fixes._rewrite import rewritten

__all__ = [
    "Change",
    "Delete",
    "Edit",
    "Fix",
    "Insert",
    "Move",
    "Replace",
    "Rewritten",
    "apply",
    "edits_for",
    "patch",
    "rewritten_files",
]


class _Finding(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def fix(self) -> Fix: ...


def edits_for(finding: _Finding) -> tuple[Edit, ...]:
    r"""Compute the edits for a finding's fix, from the current file. :func:`apply` makes the edits.

    Args:
        finding: a finding, with or without a fix.

    Returns:
        One edit per changed line, in order. () if the finding has no fix, or if the fix does not fit the source or
        would break it.

    Example:
        >>> import pathlib, tempfile
        >>> from gradgate.checker.rules import Finding
        >>> script = pathlib.Path(tempfile.mkdtemp()) / "train.py"
        >>> text = "for x in data:\n    loss(x).backward()\n    opt.zero_grad()\n    opt.step()\n"
        >>> _ = script.write_text(text)
        >>> finding = Finding(
        ...     "GG202", "zero-grad-misplaced", "error", str(script), 3, "", "", "", fix=(Move(3, after=4),)
        ... )
        >>> print(*apply(text.splitlines(), edits_for(finding)), sep="\n")
        for x in data:
            loss(x).backward()
            opt.step()
            opt.zero_grad()
    """
    if not finding.fix:
        return ()
    source = "".join(linecache.getlines(finding.file))
    after = rewritten(source, finding.fix)
    return () if after is None else between(source.splitlines(), after.splitlines())
