"""Where the command begins. What it is to do is read first; then it is done, with nothing else on the stack."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_MISSING = """\
gradgate: the command needs {names}, which `pip install gradgate` alone does not bring. Install it with

    pip install 'gradgate[cli]'

In Python, `with gradgate.watch() as report:` works without it.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command with ``arguments``, those of the process if None, and exit."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(_MISSING.format(names=" and ".join(missing)))
        sys.exit(2)
    from gradgate.cli._app import read
    from gradgate.errors import GradgateError

    try:
        work = read(sys.argv[1:] if arguments is None else arguments)
        code = work()
    except GradgateError as error:
        sys.stderr.write(f"{error}\n")
        code = 2
    except BrokenPipeError:  # who reads the output has enough, and python would complain of it at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception:  # noqa: BLE001  (1 would say that the script is wrong; what a script raises never comes here)
        import traceback

        sys.stderr.write(
            f"gradgate: a mistake of gradgate itself, not of the script:\n{traceback.format_exc()}"
        )
        code = 2
    sys.exit(code)
