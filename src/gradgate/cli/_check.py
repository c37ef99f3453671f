"""``gradgate check``: run a program under watch and report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from gradgate.checker.fixes import can_edit
from gradgate.checker.reports import (
    Report,
    Selection,
    check_output,
    counted,
    fingerprint,
    form_of,
    read_baseline,
    report_on,
    selection,
    show,
    write_baseline,
    written,
)
from gradgate.checker.running import How, Program, WatchedRun
from gradgate.cli._config import configured
from gradgate.cli._fix import fix_and_check_again
from gradgate.cli._progress import Progress
from gradgate.errors import OptionError
from gradgate.events import Log

_WHERE = "gradgate check"
_FOUND, _FAILED, _INTERRUPTED = 1, 2, 130


def check_program(
    module: str | None,
    arguments: list[str],
    *,
    select: list[str] | None,
    ignore: list[str] | None,
    form: str | None,
    max_steps: int | None,
    baseline: Path | None,
    new_baseline: Path | None,
    output: Path | None,
    progress: bool,
    fix: Sequence[str] | None,
    yes: bool,
) -> int:
    """Run a script or module under watch, write the report, and return the exit code.

    For options that are None the configuration applies, or the default. ``fix`` is the command that checks again
    once the edits are made.
    """
    if fix is not None and "LOCAL_RANK" in os.environ:
        raise OptionError(
            f"{_WHERE}: --fix cannot run a rank again. Write: gradgate check --fix torchrun ..."
        )
    if (fix is not None or form == "diff") and not can_edit():
        raise OptionError(f"{_WHERE}: edits need LibCST. Run pip install 'gradgate[cli]'.")
    program = _program(module, arguments)
    settings = configured(Path.cwd() if module else Path(program.target).resolve().parent)
    # The command line replaces what the configuration says.
    selected = selection(
        select=settings.get("select", ()) if select is None else select,
        ignore=settings.get("ignore", ()) if ignore is None else ignore,
        where=_WHERE,
    )
    form = form or (output and form_of(output)) or settings.get("format", "text")
    check_output(output, form, where=_WHERE)
    if output is not None:
        output = output.resolve()  # the script may change the working directory
    elif form == "html" and sys.stdout.isatty():
        raise OptionError(
            f"{_WHERE}: a page is for a browser, not a terminal. Name a file: --output report.html"
        )
    if new_baseline is not None:
        check_output(new_baseline, "json", where=_WHERE)
        new_baseline, baseline = new_baseline.resolve(), None
    else:
        baseline = baseline or settings.get("baseline")
    known = read_baseline(baseline, where=_WHERE) if baseline is not None else frozenset[str]()
    line = Progress(enabled=progress)
    watched = WatchedRun(
        program,
        max_steps=max_steps or settings.get("max_steps"),
        on_end=partial(
            _report, program, selected, known, new_baseline, form, output or sys.stdout, line, fix, yes
        ),
    )
    if watched.reports:
        line.start(lambda: watched.progress)
    try:
        return watched.run()
    finally:
        line.stop()


def _program(module: str | None, arguments: list[str]) -> Program:
    if module:
        return Program(module, tuple(arguments), is_module=True)
    if not arguments:
        raise OptionError(f"{_WHERE}: no script given. Write: gradgate check train.py, or -m module.")
    name, *rest = arguments
    script = Path(name)
    if not script.exists() and (command := _command(name)) is not None:
        return Program(command, tuple(rest))
    if name == "-" or (script.exists() and not script.is_file() and not script.is_dir()):
        raise OptionError(
            f"{_WHERE}: {name!r} is not a file with lines to report. Save the script to a file."
        )
    if not script.exists():
        raise OptionError(f"{_WHERE}: there is no script {name!r}. Options come before the script.")
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise OptionError(f"{_WHERE}: the folder {name!r} has no __main__.py. Name a script in it.")
    return Program(name, tuple(rest))


def _command(name: str) -> str | None:
    """Return the file of a command that is a Python script, such as torchrun or accelerate."""
    beside = Path(sys.executable).parent  # the environment may not be activated
    path = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])
    found = None if os.sep in name else shutil.which(name, path=path)
    if found is None:
        return None
    with Path(found).open("rb") as file:
        first = file.readline(256)
    return found if first.startswith(b"#!") and b"python" in first else None


def _report(
    program: Program,
    selected: Selection,
    known: Collection[str],
    new_baseline: Path | None,
    form: str,
    output: Path | TextIO,
    line: Progress,
    fix: Sequence[str] | None,
    yes: bool,
    how: How,
    logs: list[Log],
) -> int:
    line.stop()
    judged = partial(report_on, logs, script=program.target, outcome=how, selection=selected)
    report = judged(baseline=known)
    try:
        if new_baseline is not None:
            write_baseline(new_baseline, report.findings)
            report = judged(baseline=set(map(fingerprint, report.findings)))
        _write(report, form, output if isinstance(output, Path) else _open_stream(output))
    except BrokenPipeError:
        if sys.stderr is not None:
            sys.stderr.close()  # the reader has closed the pipe, and Python would complain about it at exit
    except (OSError, ValueError) as error:
        _print_error(f"gradgate: the report cannot be written: {error}\n")
        return _FAILED
    if fix is not None and how != "interrupted":
        code = fix_and_check_again(report, yes=yes, command=fix)
        if code is not None:
            return code
    if how in ("failed", "interrupted"):
        return _FAILED if how == "failed" else _INTERRUPTED
    return _FOUND if report.faults else 0


def _write(report: Report, form: str, output: Path | TextIO) -> None:
    if isinstance(output, Path):
        output.write_text(written(report, form) + "\n", encoding="utf-8")
    elif form == "text":
        with suppress(OSError, ValueError, AttributeError):  # the script may have closed or replaced them
            sys.stdout.flush()
            sys.stderr.flush()
        show(report, output)
        output.flush()
        return
    else:
        output.write(written(report, form) + "\n")
        output.flush()
    found = f"{counted(len(report.findings), 'finding')} after {counted(report.summary.steps, 'step')}"
    how = {"failed": ", when the script failed", "interrupted": ", when it was interrupted"}
    where = f"; the report is in {output}" if isinstance(output, Path) else ""
    _print_error(f"gradgate: {found}{how.get(report.summary.outcome, '')}{where}\n")


def _open_stream(stream: TextIO) -> TextIO:
    """Return the original stream, or another one if the script has closed it."""
    for each in (stream, sys.stdout, sys.__stdout__, sys.__stderr__):
        with suppress(ValueError, AttributeError):
            if each is not None and each.writable():
                return each
    return stream


def _print_error(text: str) -> None:
    """Write to standard error directly, because the script may have replaced ``sys.stderr``."""
    with suppress(OSError):
        os.write(2, text.encode())
