"""Lines of the user's source, as they stand in the file, or in the notebook's cell."""

from __future__ import annotations

import linecache


def source_line(file: str, line: int) -> str:
    """Return a line without its end, or "" where it cannot be read."""
    return linecache.getline(file, line).rstrip("\r\n") if line > 0 else ""


def excerpt(file: str, line: int, around: int) -> list[tuple[int, str]]:
    """Return a line and its neighbours with their numbers, indented no more than needed; [] if unreadable."""
    if not source_line(file, line).strip():
        return []
    numbers = range(max(1, line - around), line + around + 1)
    lines = [(n, source_line(file, n).expandtabs(4)) for n in numbers]
    while lines[0][0] < line and not lines[0][1].strip():  # no blank first or last line
        del lines[0]
    while lines[-1][0] > line and not lines[-1][1].strip():
        del lines[-1]
    indent = min(len(text) - len(text.lstrip()) for _, text in lines if text.strip())
    return [(n, text[indent:]) for n, text in lines]
