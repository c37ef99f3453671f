"""The entry point: parses the whole command line, then runs the command with no parser frames on the stack."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.util import find_spec

_MISSING = """\
gradgate: the command needs {names}, not installed by `pip install gradgate` alone. Run

    pip install 'gradgate[cli]'

In Python, `with gradgate.watch() as report:` works without it.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command with ``arguments``, or those of the process if None, and exit."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(_MISSING.format(names=" and ".join(missing)))
        sys.exit(2)
    from gradgate.cli._app import parse
    from gradgate.errors import GradgateError

    try:
        run = parse(sys.argv[1:] if arguments is None else arguments)
        code = run()
    except GradgateError as error:
        sys.stderr.write(f"{error}\n")
        code = 2
    except BrokenPipeError:  # the reader has closed the pipe, and Python would complain about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception:  # noqa: BLE001  (code 1 would blame the script, whose own errors never come here)
        sys.stderr.write(f"gradgate: a bug in gradgate itself, not in the script:\n{traceback.format_exc()}")
        code = 2
    sys.exit(code)
