"""Find the program to run: a script, a notebook, a module, or a launcher such as torchrun."""

from __future__ import annotations

import os
import shutil
import sys
from difflib import get_close_matches
from pathlib import Path

from gradgate.checker.running import Program, check_notebook
from gradgate.errors import OptionError


def program_of(module: str | None, arguments: list[str], *, where: str) -> Program:
    """Return the program that a command line names.

    Raises:
        OptionError: the command line names no program, or one that can't be run.
    """
    if module:
        return Program(module, tuple(arguments), is_module=True)
    if not arguments:
        raise OptionError(f"{where}: no script given. Write: {where} train.py, or -m module.")
    name, *rest = arguments
    script = Path(name)
    if not script.exists() and (command := _command(name)) is not None:
        return Program(command, tuple(rest))
    if name == "-" or (script.exists() and not script.is_file() and not script.is_dir()):
        raise OptionError(f"{where}: {name!r} has no lines for a report. Save the script to a file.")
    if not script.exists():
        raise OptionError(f"{where}: there is no script {name!r}.{_hint(script, rest)}")
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise OptionError(f"{where}: the folder {name!r} has no __main__.py. Name a script in it.")
    program = Program(name, tuple(rest))
    if program.is_notebook:
        check_notebook(script, where=where)
    return program


def _hint(missing: Path, rest: list[str]) -> str:
    """Return a hint for a missing script: a similar name, or misplaced options."""
    if any(Path(word).is_file() for word in rest):
        return " Write options before the script, each with one value."
    here = [path.name for path in missing.parent.glob("*") if path.suffix in (".py", ".ipynb")]
    close = get_close_matches(missing.name, here, n=1)
    return f" Did you mean {str(missing.with_name(close[0]))!r}?" if close else ""


def _command(name: str) -> str | None:
    """Return the file of a command written in Python, such as torchrun or accelerate."""
    beside = Path(sys.executable).parent  # works even if the environment is not activated
    path = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])
    found = None if os.sep in name else shutil.which(name, path=path)
    if found is None:
        return None
    with Path(found).open("rb") as file:
        first = file.readline(256)
    return found if first.startswith(b"#!") and b"python" in first else None
