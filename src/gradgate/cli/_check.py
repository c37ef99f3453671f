"""``gradgate check``: run a program under watch and report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from gradgate.checker.reports import (
    Report,
    check_output,
    checked_path,
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
from gradgate.checker.running import How, WatchedRun
from gradgate.cli._arguments import program_of
from gradgate.cli._config import configured
from gradgate.cli._fix import FAILED, TRIAL, fix_and_check_again, write_error
from gradgate.errors import OptionError
from gradgate.events import Log

_WHERE = "gradgate check"
_FOUND, _REFUSED = 1, 2


def check_program(
    module: str | None,
    arguments: list[str],
    *,
    select: list[str] | None,
    ignore: list[str] | None,
    form: str | None,
    max_steps: int | None,
    max_seconds: float | None,
    baseline: Path | None,
    new_baseline: Path | None,
    output: Path | None,
    fix: Sequence[str] | None,
    yes: bool,
) -> int:
    """Run a script or module under watch, write the report, and return the exit code.

    If an option is None, the configuration or the default applies. ``fix`` is the command for the second check,
    after the edits.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise OptionError(f"{_WHERE}: torchrun started this process. Write: gradgate check torchrun ...")
    program = program_of(module, arguments, where=_WHERE)
    settings = configured(Path.cwd() if module else Path(program.target).resolve().parent)
    # The command line overrides the configuration.
    selected = selection(
        select=settings.get("select", ()) if select is None else select,
        ignore=settings.get("ignore", ()) if ignore is None else ignore,
        where=_WHERE,
    )
    form, output = _destination(form, output, settings.get("format"))
    if new_baseline is not None:
        check_output(new_baseline, "json", where=_WHERE)
        new_baseline, baseline = new_baseline.resolve(), None
    else:
        baseline = baseline or settings.get("baseline")
    known = read_baseline(baseline, where=_WHERE) if baseline is not None else frozenset[str]()
    failed, trial = os.environ.pop(FAILED, None), os.environ.pop(TRIAL, None) is not None
    stdout = sys.stdout if form == "text" or output is not None else _reserved(sys.stdout)

    def end(how: How, code: int, logs: list[Log]) -> int:
        judged = partial(
            report_on, logs, script=program.target, outcome=how, exit_code=code, selection=selected
        )
        judged = partial(judged, notes=_notes())
        if failed is not None and how == "failed":
            judged = partial(judged, edited=True)
            Path(failed).touch()
        if trial:
            return code
        report = judged(baseline=known)
        try:
            if new_baseline is not None:
                write_baseline(new_baseline, report.findings)
                report = judged(baseline=set(map(fingerprint, report.findings)))
            _write(report, form, output or _open_stream(stdout))
        except BrokenPipeError:
            if sys.stderr is not None:
                sys.stderr.close()  # otherwise, Python would print an error about the closed pipe at exit
        except (OSError, ValueError) as error:
            write_error(f"gradgate: the report cannot be written: {error}\n")
            return _REFUSED
        second = None
        if fix is not None and how != "interrupted":
            second = fix_and_check_again(report, yes=yes, command=fix)
        return second if second is not None else code or (_FOUND if report.faults else 0)

    return WatchedRun(
        program,
        max_steps=max_steps or settings.get("max_steps"),
        max_seconds=max_seconds or settings.get("max_seconds"),
        on_end=end,
    ).run()


def _destination(form: str | None, output: Path | None, usual: str | None) -> tuple[str, Path | None]:
    """Return the report's format, and the absolute path of its file (None for the terminal)."""
    form = form or (output and form_of(output)) or usual
    if output is not None and form is None and not output.is_dir():
        checked_path(output, where=f"{_WHERE} --output")
    form = form or "text"
    check_output(output, form, where=_WHERE)
    if output is None and form == "html" and sys.stdout.isatty():
        raise OptionError(f"{_WHERE}: --format html needs a file for the browser. Add --output report.html")
    return form, None if output is None else output.resolve()  # the script may change the working directory


def _notes() -> list[str]:
    """Return a note on the interpreter if the script failed because a module is not installed there."""
    raised = getattr(sys, "last_value", None)
    if not isinstance(raised, ModuleNotFoundError):
        return []
    return [f"The script runs in {sys.executable}, which has no module {raised.name!r}."]


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
    how = f"; the script {report.summary.ending}" if report.summary.ending else ""
    where = f"; the report is in {output}" if isinstance(output, Path) else ""
    write_error(f"gradgate: {found}{how}{where}\n")


def _reserved(stream: TextIO) -> TextIO:
    """Reserve standard output for the report: the script and its children write to standard error instead."""
    try:
        stream.flush()
        number = stream.fileno()
        kept = os.dup(number)
        os.dup2(2, number)
    except (OSError, ValueError, AttributeError):  # a stream without a file, or closed
        return stream
    return os.fdopen(kept, "w", encoding=stream.encoding, errors=stream.errors)


def _open_stream(stream: TextIO) -> TextIO:
    """Return the original stream. If the script has closed it, return another open stream."""
    for each in (stream, sys.stdout, sys.__stdout__, sys.__stderr__):
        with suppress(ValueError, AttributeError):
            if each is not None and each.writable():
                return each
    return stream
