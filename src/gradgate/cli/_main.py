"""The entry point: parse the command line, then run the command without parser frames on the stack."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.util import find_spec

_MISSING = """\
gradgate: the command needs {names}, which `pip install gradgate` alone does not install. Run

    pip install 'gradgate[cli]'

In Python, `with gradgate.watch() as report:` works without this command.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit. By default, ``arguments`` are the process's own."""
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
    except BrokenPipeError:  # otherwise, Python would print an error about the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception:  # noqa: BLE001  (exit code 1 would mean findings; the script's own errors never come here)
        sys.stderr.write(f"gradgate: a bug in gradgate itself, not in the script:\n{traceback.format_exc()}")
        code = 2
    sys.exit(code)
