"""A report for people: plain text anywhere, coloured in a terminal."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TextIO

from gradgate.checker.reports._layout import Line, laid_out
from gradgate.checker.reports._report import Report

_NARROWEST, _WIDTH, _WIDEST = 60, 88, 100

# Of a terminal's colours only these three can be read on white as on black, whichever palette it has.
# What is dim may be hard to read on either: only what can be done without is.
_STYLES = {
    "rule": "dim",
    "place": "bold",
    "error": "bold red",
    "warning": "bold magenta",
    "info": "bold bright_blue",
    "ok": "bold",
    "gutter": "dim",
    "source": "bold",
    "message": "bold",
    "gone": "dim",
    "new": "bold",
}

# For terminals and files that know ASCII only.
_ASCII = str.maketrans({"─": "-", "│": "|", "❱": ">", "…": "."})


def to_text(report: Report, *, width: int = _WIDTH) -> str:
    """Return a report as plain text, without colours and without an end of line at its end."""
    return "\n".join(_plain(line) for line in laid_out(report, width))


def show(report: Report, file: TextIO) -> None:
    """Write a report to a stream: in colour where that is a terminal and NO_COLOR does not forbid it."""
    width = _WIDTH
    if _is_terminal(file):
        width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDTH, 24)).columns))
    if _wants_colour(file):
        _show_in_colour(report, file, width)
        return
    text = to_text(report, width=width) + "\n"
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    file.write(text)


def _plain(line: Line) -> str:
    return "".join(span.text for span in line).rstrip()


def _is_terminal(file: TextIO) -> bool:
    return bool(getattr(file, "isatty", lambda: False)())


def _wants_colour(file: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or importlib.util.find_spec("rich") is None:
        return False
    utf8 = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return _is_terminal(file) and utf8 and os.environ.get("TERM") not in ("dumb", "unknown")


def _show_in_colour(report: Report, file: TextIO, width: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, width=width, highlight=False)
    for line in laid_out(report, width):
        text = Text()
        for span in line:
            text.append(span.text, _STYLES.get(span.part))
        # Lines have their length already; a longer one is a path, and stays whole for the terminal to break.
        console.print(text, soft_wrap=True)
