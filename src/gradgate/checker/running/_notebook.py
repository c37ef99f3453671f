"""Run the code cells of a notebook, in order and in one namespace, as Jupyter does."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import inspect
import linecache
import os
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from gradgate.errors import OptionError
from gradgate.events import Cell

_NEEDED = ("nbformat", "IPython")
_INTERACTIVE = re.compile(
    "connect_info|cpaste|debug|ed|edit|gui|load|loadpy|man|notebook|page|paste|pdb|pdef|pdoc|pfile|pinfo2?|psearch|"
    "psource|pycat|qtconsole|recall|rep|rerun"
)
# These magics are removed and the rest of the cell runs normally, which preserves line numbers. `%%capture name` is
# left to IPython, because later cells use the variable.
_AROUND_CELL = re.compile(r"%%(time|capture(?=\s*$))\b.*")
_AROUND_LINE = re.compile(r"(\s*)%time\s+(?=\S)")
_CONTINUED = re.compile(r"\s*[%!].*\\$")


def check_notebook(path: Path, *, where: str) -> None:
    """Check before the run that a notebook can be run.

    Raises:
        OptionError: a package is missing, or the file isn't a notebook, or the notebook isn't in Python.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{where}: notebooks need {' and '.join(missing)}. Run pip install 'gradgate[notebook]'."
        )
    notebook = _read(path, where)
    kernel = notebook.metadata.get("kernelspec", {})
    language = kernel.get("language") or notebook.metadata.get("language_info", {}).get("name") or "python"
    if language.lower() not in ("python", "ipython"):
        raise OptionError(f"{where}: {str(path)!r} is a notebook in {language}. Only Python is checked.")


def _read(path: Path, where: str = "gradgate check") -> Any:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # noqa: BLE001  (nbformat also raises its dependencies' exceptions)
        text = next(iter(str(error).splitlines()), "")
        raise OptionError(
            f"{where}: {str(path)!r} is not a notebook ({type(error).__name__}: {text})."
        ) from None


def run_notebook(path: Path, main: ModuleType, notes: list[str]) -> None:
    """Run a notebook's cells in a module and in the notebook's folder, as Jupyter does. Exceptions propagate.

    ``notes`` gets a sentence for each skipped magic command.
    """
    cells = [cell for cell in _read(path).cells if cell.cell_type == "code" and cell.source.strip()]
    os.chdir(path.parent)
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as Jupyter sets it
    left_out = _LeftOut(path.name, notes)
    with _shell(main, left_out) as shell, contextlib.closing(asyncio.new_event_loop()) as loop:
        for number, cell in enumerate(cells, start=1):
            left_out.number = number
            _run_cell(shell, Cell(str(path), number), cell.source, left_out, loop)


@contextlib.contextmanager
def _shell(main: ModuleType, left_out: _LeftOut) -> Iterator[Any]:
    """Make an IPython shell that saves neither a history nor settings."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shown(DisplayHook):  # type: ignore[misc]
        """Shows the value of a cell's last line."""

        def write_output_prompt(self) -> None:
            """Write the cell's own number, because IPython's count depends on the version of IPython."""
            sys.stdout.write(f"Out[{self.shell.execution_count}]: ")

    class Shell(InteractiveShell):  # type: ignore[misc]
        """A shell that opens no windows, and leaves out some magic commands."""

        displayhook_class = Shown

        def enable_gui(self, gui: Any = None) -> None:
            """Do nothing, because figures are shown as text."""

        def system(self, cmd: str) -> None:
            """Run a shell command in this terminal."""
            sys.stdout.flush()
            self.system_raw(cmd)

        def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
            """Run a ``%magic``, unless it is left out."""
            if left_out.leaves_out("%", magic_name, line, self.find_line_magic(magic_name)):
                return None
            return super().run_line_magic(magic_name, line, _stack_depth + 1)

        def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
            """Run a ``%%magic``, unless it is left out."""
            if left_out.leaves_out("%%", magic_name, line, self.find_cell_magic(magic_name)):
                return None
            return super().run_cell_magic(magic_name, line, cell)

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    folder = tempfile.mkdtemp(prefix="gradgate-ipython-")
    process = os.getpid()
    try:
        yield Shell.instance(user_module=main, ipython_dir=folder, config=config)
    finally:
        if os.getpid() == process:  # forks reach this line, too
            shutil.rmtree(folder, ignore_errors=True)


def _run_cell(shell: Any, cell: Cell, source: str, left_out: _LeftOut, loop: Any) -> None:
    shell.execution_count = cell.number
    text = shell.transform_cell(_as_lines_of_the_cell(source, left_out))
    # With None as the modification time, linecache never drops the entry.
    linecache.cache[cell.file] = (len(text), None, text.splitlines(keepends=True), cell.file)
    try:
        tree = shell.compile.ast_parse(text, cell.file)
    except SyntaxError as error:
        raise error.with_traceback(None) from None  # hide the frames of IPython
    shell.events.trigger("pre_execute")
    began = time.perf_counter()
    body, last = tree.body, []
    if body and isinstance(body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        body, last = body[:-1], body[-1:]  # in mode "single", Python shows the value
    with shell.builtin_trap, shell.display_trap, shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        for part, mode in ((ast.Module(body, []), "exec"), (ast.Interactive(last), "single")):
            code = shell.compile(part, cell.file, mode)
            result = eval(code, shell.user_ns)
            if code.co_flags & inspect.CO_COROUTINE:
                loop.run_until_complete(result)
    if (around := _AROUND_CELL.match(source.lstrip())) and around[1] == "time":
        sys.stdout.write(f"Wall time: {time.perf_counter() - began:.3g} s\n")
    shell.events.trigger("post_execute")


def _as_lines_of_the_cell(source: str, left_out: _LeftOut) -> str:
    """Rewrite a cell so that IPython's translation preserves its line numbers."""
    lines = source.splitlines()
    first = next(at for at, line in enumerate(lines) if line.strip())
    if found := _AROUND_CELL.match(lines[first]):
        lines[first] = f"# {lines[first]}"
        if found[1] != "time":  # _run_cell handles %%time
            left_out.add(f"%%{found[1]}", "its cell ran without the magic")
    elif lines[first].startswith("%%"):
        return source  # not Python
    lines[:first] = ["#"] * first  # IPython drops empty lines at the top
    for at, line in enumerate(lines):
        if found := _AROUND_LINE.match(line):
            lines[at] = line[: found.end(1)] + line[found.end() :]
            left_out.add(found[0].strip(), "its line ran without the magic")
        elif _CONTINUED.match(line):  # IPython would join continued lines into one
            end = next(
                (end for end in range(at, len(lines)) if not lines[end].endswith("\\")), len(lines) - 1
            )
            words = [part.rstrip("\\").strip() for part in lines[at + 1 : end + 1]]
            lines[at : end + 1] = [" ".join([line.rstrip("\\"), *words]), *[""] * (end - at)]
    return "\n".join(lines) + "\n"


class _LeftOut:
    """The skipped magic commands, and their cells."""

    def __init__(self, notebook: str, notes: list[str]) -> None:
        self.number = 0
        self._notebook, self._notes = notebook, notes
        self._cells: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)

    def add(self, what: str, why: str) -> None:
        self._cells[what, why][self.number] = None
        self._notes[:] = self._sentences()  # immediately, because a cell may end the process

    def leaves_out(self, mark: str, name: str, line: str, magic: Any) -> bool:
        """Leave out a magic that needs a notebook server or user input. Return whether it is left out."""
        if magic is None:
            why = "IPython doesn't have it outside a notebook server"
        elif _INTERACTIVE.fullmatch(name):
            why = "it is interactive"
        elif name == "matplotlib" and line.strip() not in ("inline", "agg", "--list", "-l"):
            name, why = f"{name} {line}".strip(), "figures are not shown"
        else:
            return False
        self.add(mark + name, why)
        return True

    def _sentences(self) -> Iterator[str]:
        for (what, why), cells in self._cells.items():
            numbers = ", ".join(map(str, cells))
            place = f"{self._notebook} cell{'s' * (len(cells) > 1)} {numbers}"
            yield f"{place}: {what} was skipped: {why}."
