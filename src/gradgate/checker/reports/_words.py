"""Format counts, durations and paths for people."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gradgate.events import cell_of


def counted(number: int, noun: str) -> str:
    """Return "1 step" or "2,000 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Return "0.4 s", "3 min 20 s" or "2 h 5 min"."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def place_of(file: str, line: int) -> str:
    """Return "train.py:12", or "train.ipynb cell 3, line 5"."""
    return f"{short_path(file)}{', line ' if cell_of(file) else ':'}{line}"


def short_path(path: str) -> str:
    """Return a path relative to the working directory, or unchanged if it is elsewhere."""
    with suppress(ValueError, OSError):  # outside of the working directory, or the directory is gone
        return str(Path(path).relative_to(Path.cwd()))
    return path
