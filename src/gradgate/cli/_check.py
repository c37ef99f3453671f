"""``gradgate check``: run a program under watch, judge it, report."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from gradgate.checker.reports import (
    Report,
    Selection,
    check_form,
    counted,
    form_of,
    report_on,
    selection,
    show,
    written,
)
from gradgate.checker.running import How, Program, WatchedRun
from gradgate.cli._config import configured
from gradgate.cli._progress import Progress
from gradgate.errors import OptionError
from gradgate.events import Log

_FOUND, _FAILED, _INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None where it says nothing, and the configuration or the default counts."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    format: str | None = None
    max_steps: int | None = None
    output: Path | None = None
    progress: bool = True


def check_program(module: str | None, arguments: list[str], options: Options) -> int:
    """Run a script or module under watch, write the report, and return the exit code."""
    program = _program(module, arguments)
    settings = configured(Path.cwd() if module else Path(program.target).resolve().parent)
    # What the command line says replaces what the configuration says.
    chosen = selection(
        select=settings.get("select", ()) if options.select is None else options.select,
        ignore=settings.get("ignore", ()) if options.ignore is None else options.ignore,
        where="gradgate check",
    )
    named = None if options.output is None else form_of(options.output)
    form = options.format or named or settings.get("format", "text")
    check_form(form, where="gradgate check")
    if form == "html" and options.output is None and sys.stdout.isatty():
        raise OptionError(
            "gradgate check: a page is for a browser, not for a terminal. Name its file: --output report.html"
        )
    if options.output is not None and not options.output.resolve().parent.is_dir():
        raise OptionError(
            f"gradgate check: --output {options.output}: there is no folder {options.output.parent}. Make it first."
        )
    if options.output is not None and options.output.is_dir():
        raise OptionError(
            f"gradgate check: --output {options.output} is a folder. Name a file: {options.output / 'report.txt'}"
        )
    output = None if options.output is None else options.output.resolve()  # the script may change the folder
    progress = Progress(enabled=options.progress)
    watched = WatchedRun(
        program,
        max_steps=options.max_steps or settings.get("max_steps"),
        on_end=partial(_report, program, chosen, form, output or sys.stdout, progress),
    )
    if watched.reports:
        progress.start(lambda: watched.progress)
    try:
        return watched.run()
    finally:
        progress.stop()


def _program(module: str | None, arguments: list[str]) -> Program:
    if module:
        return Program(module, tuple(arguments), is_module=True)
    if not arguments:
        raise OptionError("gradgate check: no script is named. Write: gradgate check train.py, or -m module.")
    script = Path(arguments[0])
    if not script.exists() and (command := _command(arguments[0])) is not None:
        return Program(command, tuple(arguments[1:]))
    if arguments[0] == "-" or (script.exists() and not script.is_file() and not script.is_dir()):
        raise OptionError(
            f"gradgate check: {arguments[0]!r} is no file whose lines a report could name. "
            "Save the script to a file."
        )
    if not script.exists():
        raise OptionError(
            f"gradgate check: there is no script {arguments[0]!r}. Options come before the script."
        )
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise OptionError(
            f"gradgate check: the folder {arguments[0]!r} has no __main__.py. Name a script in it."
        )
    return Program(arguments[0], tuple(arguments[1:]))


def _command(name: str) -> str | None:
    """Return the file of a command that is a script of python's, as torchrun and accelerate are."""
    beside = Path(sys.executable).parent  # of an environment that may not be activated
    path = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])
    found = None if os.sep in name else shutil.which(name, path=path)
    if found is None:
        return None
    with Path(found).open("rb") as file:
        first = file.readline(256)
    return found if first.startswith(b"#!") and b"python" in first else None


def _report(
    program: Program,
    chosen: Selection,
    form: str,
    output: Path | TextIO,
    progress: Progress,
    how: How,
    logs: list[Log],
) -> int:
    progress.stop()
    output = output if isinstance(output, Path) else _first_open(output)
    report = report_on(logs, script=program.target, outcome=how, selection=chosen)
    try:
        _write(report, form, output)
    except BrokenPipeError:
        if sys.stderr is not None:
            sys.stderr.close()  # whoever read the report has enough, and python would complain of it
    except (OSError, ValueError) as error:
        _say(f"gradgate: the report cannot be written: {error}\n")
        return _FAILED
    if how == "failed":
        return _FAILED
    if how == "interrupted":
        return _INTERRUPTED
    return _FOUND if report.faults else 0


def _write(report: Report, form: str, output: Path | TextIO) -> None:
    if form == "text" and not isinstance(output, Path):
        with suppress(
            OSError, ValueError, AttributeError
        ):  # the script may have closed it, or put another there
            sys.stdout.flush()
            sys.stderr.flush()
        show(report, output)
        output.flush()
        return
    text = written(report, form)
    if isinstance(output, Path):
        output.write_text(text + "\n", encoding="utf-8")
    else:
        output.write(text + "\n")
        output.flush()
    _say(_in_a_word(report, output))


def _first_open(stream: TextIO) -> TextIO:
    """Return the stream that was there at first, or another one where the script has closed it."""
    for each in (stream, sys.stdout, sys.__stdout__, sys.__stderr__):
        with suppress(ValueError, AttributeError):
            if each is not None and each.writable():
                return each
    return stream


def _in_a_word(report: Report, output: Path | TextIO) -> str:
    found = counted(len(report.findings), "finding")
    steps = counted(report.summary.steps, "step")
    how = {"failed": ", where the script failed", "interrupted": ", where it was interrupted"}
    where = f"; the report is in {output}" if isinstance(output, Path) else ""
    return f"gradgate: {found} after {steps}{how.get(report.summary.outcome, '')}{where}\n"


def _say(text: str) -> None:
    """Write to standard error, past what the script may have put in its place."""
    with suppress(OSError):
        os.write(2, text.encode())
