"""Find the program in a command line, and separate gradgate's options from the program's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from gradgate.checker.running import Program, check_notebook
from gradgate.errors import OptionError


def before_script(args: list[str], flags: Collection[str], names: Collection[str]) -> tuple[list[str], str]:
    """Insert "--" before the script or after ``-m module``: as with python, what follows is the script's.

    ``flags`` are options without a value, ``names`` those with one.

    Returns:
        The command line, and a note for the user if gradgate's options are passed to the script, otherwise "".
    """
    at = _script_at(args, {*flags, "-h", "--help"})
    if at is None:
        return args, ""
    own, rest = args[:at], args[at:]
    module = own[-1].removeprefix("-m") if own and (own[-2:-1] == ["-m"] or own[-1].startswith("-m")) else ""
    ours = {*flags, *names} - {"-h", "--help", "-m"}
    passed = [word for word in rest[0 if module else 1 :] if word.partition("=")[0] in ours]
    note = (
        f"gradgate: {', '.join(passed)} after {f'module {module}' if module else rest[0]} "
        f"{'is' if len(passed) == 1 else 'are'} passed to the script. Write gradgate's options before it."
    )
    return [*own, "--", *rest], note if passed else ""


def _script_at(args: list[str], flags: Collection[str]) -> int | None:
    """Return the index of the script or of a module's first argument; None if there is none or "--" is first."""
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            return None
        if word == "-m" and at + 1 < len(args):
            return at + 2
        if word.startswith("-m"):
            return at + 1
        if not word.startswith("-") or word == "-":
            return at
        at += 1 if word in flags or "=" in word else 2
    return None


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
