"""Apply the edits of several findings to files, or combine the edits in one patch."""

from __future__ import annotations

import tokenize
from collections.abc import Collection, Iterable
from difflib import unified_diff
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from gradgate.checker.analysis._notebook_text import cells_in, with_source
from gradgate.checker.analysis._source import whole_text
from gradgate.checker.fixes._edit import Edit, apply
from gradgate.events import Cell, cell_of


class Rewritten(NamedTuple):
    """A file and its text before and after the edits."""

    path: Path
    encoding: str
    before: str
    after: str


def rewritten_files(edits: Iterable[tuple[str, tuple[Edit, ...]]]) -> list[Rewritten]:
    """Return the edited files, given the file and edits of each finding.

    If several findings change the same line, only the edits of the first finding are made. The next check computes
    the other edits from the new file. Unreadable files and notebooks with an unusual layout are left out.
    """
    chosen: dict[str, dict[int, Edit]] = {}
    for file, several in edits:
        taken = chosen.setdefault(file, {})
        if not any(edit.line in taken for edit in several):
            taken.update({edit.line: edit for edit in several})
    made: dict[str, Rewritten] = {}
    for source, by_line in chosen.items():
        cell = cell_of(source)
        path = source if cell is None else cell.notebook  # all cells of a notebook are in one file
        current = made.get(path) or _read(path)
        if by_line and current is not None:
            made[path] = _made(current, by_line.values(), cell)
    return [file for file in made.values() if file.after != file.before]


def patch(files: Iterable[Rewritten]) -> str:
    """Return the changes as a unified diff for ``git apply`` or ``patch -p1``."""
    parts: list[str] = []
    for path, _, before, after in files:
        name = _relative(path)
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        lines = unified_diff(old, new, f"a/{name}", f"b/{name}")
        end = "\n\\ No newline at end of file\n"
        parts += [line if line.endswith("\n") else line + end for line in lines]
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


def _made(file: Rewritten, edits: Collection[Edit], cell: Cell | None) -> Rewritten:
    if cell is not None:
        return file._replace(after=_edited_cell(file.after, edits, cell) or file.after)
    end = "\r\n" if "\r\n" in file.before else "\n"
    lines = apply(file.before.splitlines(), edits)
    return file._replace(after=end.join(lines) + (end if file.before.endswith("\n") else ""))


def _edited_cell(notebook: str, edits: Collection[Edit], cell: Cell) -> str | None:
    """Return a notebook's text with an edited cell, or None if the edits don't fit the cell."""
    text = cells_in(notebook).get(cell.number)
    if text is None:
        return None
    source = [line.removesuffix("\n") for line in text.source]
    # The edits fit the code that ran, in which IPython had translated magic commands. So an edit of a translated
    # line does not fit the notebook.
    ran = whole_text(cell.file).splitlines()
    translated = {n for n, (old, new) in enumerate(zip_longest(source, ran), 1) if old != new}
    if any(edit.instead and edit.line in translated for edit in edits):
        return None
    return with_source(notebook, cell.number, apply(source, edits))


def _relative(path: Path) -> str:
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix().lstrip("/")
