"""Run a script the way Python runs it, and show its errors the way Python shows them."""

from __future__ import annotations

import builtins
import io
import os
import sys
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from gradgate.checker.running._notebook import run_notebook
from gradgate.events import cell_of
from gradgate.torch_compat import run_module_as_main

_PACKAGE = Path(__file__).absolute().parents[2]  # unresolved, as the file names in code objects are
_OWN = tuple(str(_PACKAGE / name) + os.sep for name in ("checker", "cli"))

How: TypeAlias = Literal["finished", "stopped", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run: ``python target arguments``, or ``python -m target arguments``."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def is_notebook(self) -> bool:
        """Whether the target is a notebook, whose code cells are run."""
        return not self.is_module and self.target.endswith(".ipynb")


def run(program: Program, notes: list[str]) -> tuple[How, int]:
    """Run a program to its end, print its uncaught exception, and return its outcome and exit code.

    ``notes`` gets a sentence for each skipped part of a notebook. ``__main__`` is not restored, because the
    program's ``atexit`` functions may need it.
    """
    try:
        _run(program, notes)
    except BaseException as error:  # noqa: BLE001  (no exception of the script may end gradgate)
        return _ended_by(error)
    return "finished", 0


def _ended_by(error: BaseException) -> tuple[How, int]:
    watcher = sys.modules.get("gradgate.checker.recording")
    if watcher is not None and any(isinstance(each, watcher.StopRun) for each in led_to(error)):
        return "stopped", 0  # even if the script or a trainer raised another error while handling StopRun
    if isinstance(error, SystemExit):
        if error.code is None:
            return "finished", 0
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")  # as Python does
            return "failed", 1
        code = error.code & 0xFF if os.name == "posix" else error.code  # the shell sees only these bits
        return "failed" if code else "finished", code
    if isinstance(error, KeyboardInterrupt):  # after Ctrl-C, show the report, not a traceback
        return "interrupted", 130
    shown_as_python_does(error)
    return "failed", 1


def _run(program: Program, notes: list[str]) -> None:
    sys.argv[:] = ["-m" if program.is_module else program.target, *program.arguments]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    path = Path(program.target).resolve()
    file = os.path.join(os.getcwd(), program.target)  # noqa: PTH109, PTH118  (like Python, keep "./", which Path drops)
    if program.is_module:
        _set_first_path(os.getcwd())  # noqa: PTH109
        run_module_as_main.use(program.target)
    elif program.is_notebook:
        _set_first_path(str(path.parent))
        run_notebook(path, main, notes)
    elif _is_package(program.target):
        _set_first_path(file)
        run_module_as_main.use("__main__", alter_argv=False)
    else:
        _set_first_path(str(path.parent))
        with io.open_code(file) as opened:
            source = opened.read()
        main.__dict__.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
        exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _is_package(path: str) -> bool:
    """Return whether a path is a folder or archive with a ``__main__.py``."""
    if Path(path).is_dir():
        return True
    with Path(path).open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _set_first_path(folder: str) -> None:
    """Put the script's folder first in ``sys.path``, in place of the folder of gradgate's command."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


def shown_as_python_does(error: BaseException) -> None:
    """Pass an uncaught exception to ``sys.excepthook``, which the script may have replaced."""
    drop_own_frames(error)
    kind, trace = type(error), error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    show = sys.excepthook
    if show is sys.__excepthook__ and any(cell_of(each.filename) for each in traceback.extract_tb(trace)):
        show = traceback.print_exception  # unlike sys.__excepthook__, this shows the source lines of cells
    try:
        show(kind, error, trace)
    except Exception:  # noqa: BLE001  (show the script's error even if the script's hook fails)
        traceback.print_exception(kind, error, trace)


def drop_own_frames(error: BaseException) -> None:
    """Remove gradgate's frames from the tracebacks of an exception and its causes."""
    for each in led_to(error):
        each.__traceback__ = _without_own(each.__traceback__)


def led_to(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the members of exception groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = None
    for each in reversed(frames):
        if not each.tb_frame.f_code.co_filename.startswith(_OWN):
            each.tb_next, kept = kept, each
    return kept
