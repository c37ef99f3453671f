"""Private names of Python: the end of the interpreter, signal handlers, and child processes."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from gradgate.torch_compat._private import Private


def _run_module(name: str = "__main__", alter_argv: bool = True) -> None:
    import runpy

    del alter_argv
    runpy.run_module(name, run_name="__main__", alter_sys=True)


# Python itself runs ``-m`` with this function, which sets argv[0]. Its frames appear in tracebacks.
run_module_as_main: Private[..., Any] = Private(
    "runpy._run_module_as_main",
    "run a module as python -m does",
    find=lambda: import_module("runpy")._run_module_as_main,
    instead=_run_module,
)

end_threads: Private[[], None] = Private(
    "threading._shutdown",
    "wait for a script's threads before it reports",
    find=lambda: import_module("threading")._shutdown,
    instead=lambda: None,
    rules=("every rule",),
)

run_exit_functions: Private[[], None] = Private(
    "atexit._run_exitfuncs",
    "run a script's exit handlers before it reports",
    find=lambda: import_module("atexit")._run_exitfuncs,
    instead=lambda: None,
    rules=("every rule",),
)


# The public functions look each handler up in an enumeration, which takes as long as a small model's step.
get_signal_handler: Private[[int], Any] = Private(
    "_signal.getsignal",
    "read a signal's handler quickly",
    find=lambda: import_module("_signal").getsignal,
    instead=lambda number: import_module("signal").getsignal(number),
    works=lambda get: get(2) == import_module("signal").getsignal(2),
)

set_signal_handler: Private[[int, Any], Any] = Private(
    "_signal.signal",
    "install a signal's handler quickly",
    find=lambda: import_module("_signal").signal,
    instead=lambda number, handler: import_module("signal").signal(number, handler),
)


process_target: Private[[Any], Any] = Private(
    "multiprocessing.process.BaseProcess._target",
    "tell what a multiprocessing process runs",
    find=lambda: lambda process: getattr(process, "_target", None),
    instead=lambda process: None,
    works=lambda _: (
        "_target" in import_module("multiprocessing.process").BaseProcess.__init__.__code__.co_names
    ),
    rules=("every rule",),
)


# multiprocessing calls this in each new child. In a spawned child, the original does nothing, so gradgate can
# replace it.
def _before_spawned() -> Callable[[Callable[[], None]], None]:
    kind = import_module("multiprocessing.context").SpawnProcess
    _ = kind._after_fork
    return lambda act: setattr(kind, "_after_fork", staticmethod(act))


before_spawned: Private[[Callable[[], None]], None] = Private(
    "multiprocessing.context.SpawnProcess._after_fork",
    "watch the processes that multiprocessing spawns",
    find=_before_spawned,
    instead=lambda act: None,
    rules=("every rule",),
)


def flush_open_files() -> None:
    """Flush every open file of the process. CPython keeps no list of them, so the garbage collector is searched.

    A file object that ``gc.freeze()`` has set aside is not found, and its buffer is lost.
    """
    # type(), because isinstance reads __class__, which some objects compute with warnings.
    for file in [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]:
        with suppress(Exception):
            file.flush()
