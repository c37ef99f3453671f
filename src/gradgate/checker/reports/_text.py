"""Reports for people: plain text, and coloured text in a terminal."""

from __future__ import annotations

import importlib.util
import os
import shutil
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import TextIO, TypeAlias

from gradgate.checker.reports._content import Content, Entry, SourceLine
from gradgate.checker.reports._words import short_path

_NARROWEST, _WIDTH, _WIDEST = 60, 88, 100
_AROUND = 2  # lines of source above and below a finding
_MOST_CHANGED = 8  # lines of a fix that are shown
_MARKS = {"here": "❱", "": " "}

# Only these three terminal colours are readable on both white and black in every common palette. Dim text may be
# unreadable, so only unimportant text is dim.
_STYLES = {
    "rule": "dim",
    "place": "bold",
    "error": "bold red",
    "warning": "bold magenta",
    "note": "bold bright_blue",
    "ok": "bold",
    "gutter": "dim",
    "help": "dim",
    "here": "bold",
    "message": "bold",
    "-": "dim",
    "+": "bold",
}

# For terminals and files that are limited to ASCII.
_ASCII = str.maketrans({"─": "-", "│": "|", "❱": ">", "…": "."})


# The pieces of a line: (text, name of a style).
Line: TypeAlias = "list[tuple[str, str]]"


def to_text(report: Content, *, width: int = _WIDTH) -> str:
    """Return a report as plain text, without a final line end."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in _lines(report, width))


def show(report: Content, file: TextIO) -> None:
    """Write a report to a stream, in colour if the stream is a terminal and ``NO_COLOR`` is not set."""
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


def _is_terminal(file: TextIO) -> bool:
    return bool(getattr(file, "isatty", lambda: False)())


def _wants_colour(file: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or importlib.util.find_spec("rich") is None:
        return False
    utf8 = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return _is_terminal(file) and utf8 and os.environ.get("TERM") not in ("dumb", "unknown")


def _show_in_colour(report: Content, file: TextIO, width: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, width=width, highlight=False)
    for line in _lines(report, width):
        pieces = ((text, _STYLES.get(style, "")) for text, style in line)
        # The lines are already wrapped, except for long paths and code, which the terminal may wrap.
        console.print(Text.assemble(*pieces), soft_wrap=True)


def _lines(report: Content, width: int) -> Iterator[Line]:
    """Yield the lines of a report. Only changed code and long paths may be wider than ``width``."""
    last = {finding.code: finding for finding in report.findings}  # one hint per code, at its last finding
    for file, entries in groupby(report.entries(), key=lambda entry: entry.finding.file):
        name = short_path(file)
        yield [(f"── {name} ───".ljust(width, "─"), "rule")]
        yield []
        for entry in entries:
            yield from _entry(entry, width, with_help=entry.finding is last[entry.finding.code])
            yield []
    if report.findings:
        yield [("─" * width, "rule")]
    sentence, severity = report.verdict()
    for text in _wrapped(sentence, width):
        yield [(text, severity)]
    for label, fact in report.facts():
        for number, text in enumerate(_wrapped(fact, width - 9)):
            yield [(f"{'' if number else label:9}{text}", "")]


def _entry(entry: Entry, width: int, *, with_help: bool) -> Iterator[Line]:
    severity, finding = entry.severity, entry.finding
    yield [(f"{entry.place}  ", "place"), (f"{severity}  {finding.code}", severity), (f" {entry.rule}", "")]
    if source := entry.source(_AROUND):
        yield []
        yield from (_source_line(line, severity, width) for line in source)
    yield []
    yield from _paragraph("", finding.message, width)
    yield from _paragraph("why", finding.why, width)
    yield from _paragraph("fix", entry.finding.advice, width)
    if 0 < len(changed := entry.changes(0)) <= _MOST_CHANGED:
        yield []
        yield from (_source_line(line, severity, width) for line in changed)
    if with_help and entry.help:
        yield []
        yield [(f"  see  {entry.help}", "help")]


def _source_line(line: SourceLine, severity: str, width: int) -> Line:
    gutter = f"  {_MARKS.get(line.mark, line.mark)} {line.number or '':>4} │ "
    available = width - len(gutter)
    # A changed line is shown whole: users copy what is added, and compare it with what is removed.
    fits = line.mark in ("+", "-") or len(line.text) <= available
    text = line.text if fits else line.text[: available - 1] + "…"
    style = {"here": severity, "": "gutter"}.get(line.mark, line.mark)
    return [(gutter, style), (text, line.mark)]


def _paragraph(label: str, text: str, width: int) -> Iterator[Line]:
    """Yield a label and its wrapped text. Indented lines are code and are not wrapped."""
    indent = " " * (7 if label else 2)
    head = f"  {label:5}" if label else indent
    for line in text.splitlines():
        for part in [line] if line[:1].isspace() else _wrapped(line, width - len(indent)):
            yield [(head, ""), (part, "" if label else "message")]
            head = indent


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
