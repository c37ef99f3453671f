"""Find the program in a command line, and separate gradgate's options from the program's."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from gradgate.checker.running import Program, check_notebook
from gradgate.errors import OptionError

_READS_ARGUMENTS = re.compile(
    r"\b(argv|argparse|\w*ArgumentParser|parse_args|getopt|optparse|click|typer|fire|absl|tyro|docopt|hydra|"
    r"jsonargparse|simple_parsing|LightningCLI|exec|runpy)\b"
)
_MOST_FILES = 200


def before_script(args: list[str], flags: Collection[str], names: Collection[str]) -> tuple[list[str], str]:
    """Move gradgate's options before the script, and insert "--" before the script or after ``-m module``.

    Options come before the script, as with python. Options after the script belong to the script if it reads
    arguments, otherwise to gradgate. ``flags`` are options without a value, ``names`` those with one.

    Returns:
        The command line, and a note for the user if gradgate's options are passed to the script, otherwise "".
    """
    flags, names = set(flags) - {"-h", "--help"}, set(names) - {"-m"}
    at = _script_at(args, {*flags, "-h", "--help"})
    if at is None:
        return args, ""
    own, rest = args[:at], args[at:]
    if own[-2:-1] == ["-m"] or (own and own[-1].startswith("-m") and len(own[-1]) > 2):
        return [*own, "--", *rest], _note(rest, flags, names, f"module {own[-1].removeprefix('-m')}")
    script, words = rest[0], rest[1:]
    if _reads_arguments(Path(script)):
        return [*own, "--", *rest], _note(words, flags, names, script)
    theirs: list[str] = []
    while words:
        if words[0] == "--":
            return [*own, "--", script, *theirs, *words], ""
        name, _, value = words[0].partition("=")
        length = 1 if name in flags or value else 2
        if name in flags or name in names:
            own += words[:length]
        else:
            theirs.append(words[0])
            length = 1
        words = words[length:]
    return [*own, "--", script, *theirs], ""


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


def _reads_arguments(script: Path) -> bool:
    """Return whether a script, or a neighbouring file that it may import, reads the command line."""
    if not script.is_file() or script.suffix not in (".py", ".ipynb"):
        return True  # the script is a command such as torchrun, or a package
    files = [script, *sorted(script.parent.glob("*.py"))[:_MOST_FILES]]
    return any(_READS_ARGUMENTS.search(file.read_text("utf-8", "replace")) for file in files)


def _note(words: list[str], flags: Collection[str], names: Collection[str], script: str) -> str:
    passed = [word for word in words if word.partition("=")[0] in {*flags, *names}]
    if not passed:
        return ""
    is_or_are = "is" if len(passed) == 1 else "are"
    return (
        f"gradgate: {', '.join(passed)} after {script} {is_or_are} passed to the script, which may read arguments. "
        "Write gradgate's options before it."
    )


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
