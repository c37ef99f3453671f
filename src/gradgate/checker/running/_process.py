"""The watcher of this process, and the log that a child process writes.

The watcher starts after the script's own import of torch, so that gradgate never imports torch first.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gradgate.checker.running._imports import after_import
from gradgate.checker.running._logs import Settings, write_log
from gradgate.torch_compat import flush_open_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradgate.checker.recording import Watcher
    from gradgate.checker.running._script import How

_PATIENCE = 3  # how often a script may catch StopRun
_STALLED_SECONDS = 5.0  # a process that should stop is ended after this many idle seconds
_STALLED_SECONDS_WITH_CHILDREN = 30.0  # the same if the process has children, which may be busy
_IDLE = 0.02  # a process is idle if it uses less than this fraction of a CPU
_TICK = 0.25
_exit = os._exit


@dataclass
class _State:
    settings: Settings | None = None  # None if this process is not watched
    watcher: Watcher | None = None  # None until torch has been imported
    # Called with the outcome and exit code if the process ends without returning. Returns the exit code.
    end: Callable[[How, int], int] | None = None
    is_child: bool = False  # whether another process of the run started this one


state = _State()


def watch_this_process(settings: Settings, end: Callable[[How, int], int]) -> None:
    """Watch the process that the user started. ``end`` is called if the script ends the process itself."""
    state.settings, state.end, state.is_child = settings, end, False
    after_import("torch", start)


def watch_this_child(settings: Settings) -> None:
    """Watch a child process, which writes its log when it ends."""
    state.settings, state.end, state.is_child = settings, _end_child, True


def forked() -> bool:
    """In a forked child, drop the parent's watcher. Return whether the parent had a watcher."""
    inherited, state.watcher = state.watcher, None
    if state.settings is None:
        return False
    watch_this_child(state.settings)
    if inherited is not None:
        inherited.stop()
    return inherited is not None


def started_alone() -> None:
    """Prepare an interpreter that runs a program, so that it writes its log at exit."""

    def start_and_leave_log() -> None:
        start()
        atexit.register(leave_log)

    after_import("torch", start_and_leave_log)


def forget_run() -> None:
    """Stop watching this process and its future children."""
    state.settings = state.watcher = state.end = None


def leave_log(how: How = "finished") -> None:
    """Stop watching this child, and write its log for the process that the user started."""
    settings, watcher = state.settings, state.watcher
    forget_run()
    if settings is None or watcher is None:
        return
    # multiprocessing's finalizers run while an error is being handled. At exit, an error has already been shown.
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    watcher.stop("failed" if isinstance(error, Exception) else "stopped" if how == "interrupted" else how)
    if watcher.steps or watcher.backwards:
        path = Path(settings.folder) / f"{os.getpid()}-{time.time_ns()}.pickle"
        with suppress(OSError):  # the folder is gone if the run was abandoned
            write_log(path, watcher.log())


def _end_child(how: How, code: int) -> int:
    leave_log(how)
    return code


def report_end(how: How, code: int) -> int:
    """Report, or write the log, before this process ends. Return the exit code."""
    return code if state.end is None else state.end(how, code)


def end_at_once(code: int) -> NoReturn:
    """Flush the open files, and end the process without running another line of the script."""
    flush_open_files()
    _exit(code)


def start() -> None:
    """Start the watcher. torch has just been imported."""
    if state.settings is None or state.watcher is not None:
        return
    from gradgate.checker.recording import StopRun, Watcher

    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    watcher = state.watcher = Watcher(script, state.settings.max_steps, state.settings.max_seconds)
    watcher.stop_with(StopRun, _stopping)
    watcher.start()


def _stopping(times: int) -> None:
    """Before each raise of StopRun, make sure that the script will end."""
    if times > _PATIENCE:
        end_at_once(report_end("stopped", 0))
    elif times == 1:
        threading.Thread(target=_end_if_stalled, args=[state.watcher], name="gradgate", daemon=True).start()


def _end_if_stalled(watcher: Watcher | None) -> None:
    """End the process when it is idle: it may wait forever for a stopped thread or a queue."""
    since, used = time.monotonic(), time.process_time()
    while state.watcher is watcher:
        time.sleep(_TICK)
        now, busy = time.monotonic(), time.process_time()
        if busy - used > _IDLE * max(now - since, 1.0):
            since, used = now, busy
        if now - since <= _STALLED_SECONDS or state.watcher is not watcher:
            continue
        forking = sys.modules.get("multiprocessing.process")
        has_children = forking is not None and bool(forking.active_children())
        if not has_children or now - since > _STALLED_SECONDS_WITH_CHILDREN:
            end_at_once(report_end("stopped", 0))
