"""Maps lines of notebook cells to lines of the notebook file, as editors and code hosts show the file's text."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

from gradgate.events import Cell


class CellText(NamedTuple):
    """The lines of a file that hold a cell's source: one JSON string for each line of the cell."""

    first: int  # number of the first line, from 1
    source: tuple[str, ...]  # the cell's lines, including line ends


def line_in_file(cell: Cell, line: int) -> int | None:
    """Return the line of a notebook's file that holds a line of a cell, or None if there is no such line."""
    try:
        found = cells_in(Path(cell.notebook).read_text("utf-8")).get(cell.number)
    except (OSError, ValueError):
        return None
    return found.first + line - 1 if found is not None and 1 <= line <= len(found.source) else None


@functools.lru_cache(maxsize=16)
def cells_in(notebook: str) -> dict[int, CellText]:
    """Return the lines of each code cell in a notebook's text, by cell number; {} if the text has another form."""
    try:
        cells = json.loads(notebook)["cells"]
        sources = [(cell["cell_type"] == "code", cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError):
        return {}
    lines, at, number, found = notebook.splitlines(), 0, 0, {}
    for is_code, source in sources:
        is_counted = is_code and bool("".join(source).strip())
        number += is_counted
        if not isinstance(source, list):
            return {}
        if source:
            starts = range(at + 1, len(lines))
            start = next((start for start in starts if _strings(lines, start, len(source)) == source), None)
            if start is None:
                return {}
            at = start + len(source)
            if is_counted:
                found[number] = CellText(start + 1, tuple(source))
    return found


def _strings(lines: list[str], start: int, count: int) -> list[str] | None:
    """Return the JSON strings in these lines, or None if no cell's source begins there."""
    if lines[start - 1].strip() != '"source": [':
        return None
    try:
        return [json.loads(line.strip().removesuffix(",")) for line in lines[start : start + count]]
    except ValueError:
        return None


def with_source(notebook: str, number: int, source: list[str]) -> str | None:
    """Return a notebook's text with new lines in a cell. No other character changes.

    Args:
        notebook: the text of the file.
        number: number of the cell.
        source: new lines of the cell, without line ends.

    Returns:
        the new text, or None if the file stores the cell in an unusual form.
    """
    cell = cells_in(notebook).get(number)
    if cell is None:
        return None
    lines = notebook.splitlines()
    first, end = cell.first - 1, cell.first - 1 + len(cell.source)
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    end_of_last = "\n" * cell.source[-1].endswith("\n")
    strings = [*(f"{line}\n" for line in source[:-1]), *(f"{line}{end_of_last}" for line in source[-1:])]
    for ensure_ascii in (False, True):
        if _as_json(cell.source, indent, ensure_ascii) == lines[first:end]:
            lines[first:end] = _as_json(strings, indent, ensure_ascii)
            return "\n".join(lines) + "\n" * notebook.endswith("\n")
    return None


def _as_json(strings: list[str] | tuple[str, ...], indent: str, ensure_ascii: bool) -> list[str]:
    text = [f"{indent}{json.dumps(each, ensure_ascii=ensure_ascii)}," for each in strings]
    return [*text[:-1], text[-1].removesuffix(",")] if text else []
