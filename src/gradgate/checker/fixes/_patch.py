"""The edits of several findings as new texts of files, and as one patch."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from gradgate.checker.fixes._edit import Edit, apply


class Rewritten(NamedTuple):
    """A file, and its text before and after some edits."""

    path: Path
    encoding: str
    before: str
    after: str


def rewritten_files(edits: Iterable[tuple[str, tuple[Edit, ...]]]) -> list[Rewritten]:
    """Return the files with the edits of several findings made.

    Of findings that change the same line, only the first one's edits are made: the others are computed anew from
    the file that results. A file that cannot be read is left out.

    Args:
        edits: the file, and the edits, of each finding.
    """
    chosen: dict[str, dict[int, Edit]] = {}
    for file, several in edits:
        taken = chosen.setdefault(file, {})
        if not any(edit.line in taken for edit in several):
            taken.update({edit.line: edit for edit in several})
    read = [(_read(file), by_line.values()) for file, by_line in chosen.items() if by_line]
    return [_made(file, some) for file, some in read if file is not None]


def patch(files: Iterable[Rewritten]) -> str:
    """Return what changes as a unified diff, which ``git apply`` and ``patch -p1`` take."""
    parts: list[str] = []
    for path, _, before, after in files:
        name = _relative(path)
        lines = unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        parts += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        ]
    return "".join(parts)


def _read(file: str) -> Rewritten | None:
    path = Path(file)
    try:
        with path.open("rb") as raw:
            encoding = tokenize.detect_encoding(raw.readline)[0]
        with path.open(encoding=encoding, newline="") as opened:
            text = opened.read()
    except (OSError, SyntaxError, UnicodeError):
        return None
    return Rewritten(path, encoding, text, text)


def _made(file: Rewritten, edits: Iterable[Edit]) -> Rewritten:
    end = "\r\n" if "\r\n" in file.before else "\n"
    lines = apply(file.before.splitlines(), edits)
    return file._replace(after=end.join(lines) + (end if file.before.endswith("\n") else ""))


def _relative(path: Path) -> str:
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix().lstrip("/")
