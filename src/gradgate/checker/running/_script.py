"""Run somebody's script the way python itself runs it."""

from __future__ import annotations

import builtins
import io
import os
import sys
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Literal, TypeAlias

from gradgate.checker.running._traceback import led_to, shown_as_python_does
from gradgate.torch_compat import run_module_as_main

How: TypeAlias = Literal["finished", "stopped", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: ``python target arguments``, or ``python -m target arguments``."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def file(self) -> str:
        """The source file, as far as it is known without importing anything; "" where it is not."""
        if not self.is_module:
            return os.path.join(os.getcwd(), self.target)  # noqa: PTH109, PTH118  (python keeps "./", Path does not)
        return ""


def run(program: Program) -> tuple[How, int]:
    """Run a program to its end; say how it ended, and with which exit code. What it raised has been shown.

    ``__main__`` is the program's from now on, also after this returns: what it registered for the exit of the
    interpreter may need it.
    """
    try:
        (_run_module if program.is_module else _run_path)(program)
    except BaseException as error:  # noqa: BLE001  (whatever a script raises ends it, and must not end us)
        return _ended_by(error)
    return "finished", 0


def _ended_by(error: BaseException) -> tuple[How, int]:
    watcher = sys.modules.get("gradgate.checker.recording")
    if watcher is not None and any(isinstance(each, watcher.StopRun) for each in led_to(error)):
        return "stopped", 0  # also where the script, or a trainer, made another error of it
    if isinstance(error, SystemExit):
        if error.code is None:
            return "finished", 0
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")  # as python does
            return "failed", 1
        return "failed" if error.code else "finished", error.code
    if isinstance(error, KeyboardInterrupt):  # whoever pressed the keys knows, and waits for the report
        return "interrupted", 130
    shown_as_python_does(error)
    return "failed", 1


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _run_path(program: Program) -> None:
    sys.argv[:] = [program.target, *program.arguments]
    main = _new_main()
    if _is_package(program.target):  # a folder or an archive with a __main__.py
        _set_first_path(program.file)
        run_module_as_main.use("__main__", alter_argv=False)
        return
    _set_first_path(str(Path(program.target).resolve().parent))
    with io.open_code(program.file) as file:
        source = file.read()
    main.__dict__.update(
        __file__=program.file, __cached__=None, __loader__=SourceFileLoader("__main__", program.file)
    )
    exec(compile(source, program.file, "exec", dont_inherit=True), main.__dict__)


def _run_module(program: Program) -> None:
    sys.argv[:] = ["-m", *program.arguments]
    _new_main()
    _set_first_path(os.getcwd())  # noqa: PTH109
    run_module_as_main.use(program.target)


def _is_package(path: str) -> bool:
    if Path(path).is_dir():
        return True
    with Path(path).open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _set_first_path(folder: str) -> None:
    """Put the script's folder where python puts it: in place of our own command's."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]
