"""The watcher of this process, and the log that a child leaves.

Nothing is imported for any of this: the watcher starts when torch has been imported, whoever does that.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from gradgate.checker.running._imports import after_import
from gradgate.checker.running._settings import Settings
from gradgate.checker.running._stalled import when_stalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradgate.checker.recording import Watcher
    from gradgate.checker.running._script import How

_PATIENCE = 3  # times that a script may catch what is to stop it
_exit = os._exit


@dataclass
class _State:
    settings: Settings | None = None  # None: this process is not watched
    watcher: Watcher | None = None
    # Called before the process ends in a way that leads back to nobody: with how, and the code; returns the code.
    end: Callable[[How, int], int] | None = None
    is_child: bool = False
    in_pool: bool = False  # a worker that must not die of what stops its task
    log: Path | None = None
    told: int = 0  # steps and backward calls of the log that was left


_state = _State()


def watch_this_process(settings: Settings, end: Callable[[How, int], int]) -> None:
    """Watch the process that the user started. ``end`` is what remains to be done where that leaves of itself."""
    _state.settings, _state.end, _state.is_child = settings, end, False
    after_import("torch", start)


def watch_this_child(settings: Settings) -> None:
    """Take this process for one that the run has started: its log is left when it ends."""
    _state.settings, _state.end, _state.is_child = settings, _end_child, True
    _state.log = None


def forked() -> bool:
    """Give up the parent's watcher in a child that was forked off; say whether there was one."""
    inherited, _state.watcher = _state.watcher, None
    if _state.settings is None:
        return False
    watch_this_child(_state.settings)
    if inherited is not None:
        inherited.stop()
    return inherited is not None


def started_alone() -> None:
    """Prepare an interpreter that runs a program of its own: it leaves its log when it ends."""
    after_import("torch", start)
    after_import("torch", _leave_log_at_exit)


def _leave_log_at_exit() -> None:
    atexit.register(leave_log)


def settings() -> Settings | None:
    """Return what this process is watched for, if it is."""
    return _state.settings


def current() -> Watcher | None:
    """Return the watcher of this process, once torch has been imported."""
    return _state.watcher


def is_child() -> bool:
    """Say whether this process was forked off, or started, by the one that the user started."""
    return _state.is_child


def let_go() -> None:
    """Forget the run: what happens in this process, and in its children to come, is nobody's business."""
    _state.settings = _state.watcher = _state.end = None


def serves_a_pool() -> None:
    """Say that this child does tasks: what stops one must be an error of the task, or its caller waits for ever."""
    _state.in_pool = True


def leave_log(how: Literal["finished", "stopped", "failed"] = "finished") -> None:
    """Stop watching this child, and leave its log for the process that the user started."""
    settings, watcher = _state.settings, _state.watcher
    let_go()
    if settings is None or watcher is None:
        return
    # Called by multiprocessing the error is on its way; called at the interpreter's exit it has been shown.
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    watcher.stop("failed" if isinstance(error, Exception) else how)
    _write_log(settings, watcher)


def leave_log_so_far() -> None:
    """Leave what this child has seen, for the case that it is killed; the next log takes its place."""
    settings, watcher = _state.settings, _state.watcher
    if settings is None or watcher is None:
        return
    seen = watcher.steps + watcher.backwards
    if seen > 1.5 * _state.told:  # a log takes time to write
        _state.told = seen
        _write_log(settings, watcher)


def _write_log(settings: Settings, watcher: Watcher) -> None:
    if not (watcher.steps or watcher.backwards):
        return
    from gradgate.events import to_json

    if _state.log is None:
        _state.log = Path(settings.folder) / f"{os.getpid()}-{time.time_ns()}.json"
    path = _state.log
    with suppress(OSError):  # the run was given up, and its folder removed
        path.with_suffix(".part").write_text(json.dumps(to_json(watcher.log())), encoding="utf-8")
        path.with_suffix(".part").replace(path)  # nobody reads half a log


def _end_child(how: How, code: int) -> int:
    leave_log("stopped" if how == "interrupted" else how)
    return code


def last_words(how: How, code: int) -> int:
    """Do what is to be done before this process ends, and return the code that it is to end with."""
    return code if _state.end is None else _state.end(how, code)


def stop_at_once() -> None:
    """End a process that was told to stop, and does not."""
    end_at_once(last_words("stopped", 0))


def end_at_once(code: int) -> NoReturn:
    """End the process without a further line of the script, and lose nothing that it has written."""
    # type(), and not isinstance: that would ask each object for its __class__, which some compute, and warn.
    for file in [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]:
        with suppress(Exception):
            file.flush()
    _exit(code)


def start() -> None:
    """Start the watcher, now that torch has been imported."""
    if _state.settings is None or _state.watcher is not None:
        return
    from gradgate.checker.recording import StopRun, StopTask, Watcher

    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None) or ""
    watcher = _state.watcher = Watcher(script, _state.settings.max_steps)
    watcher.stop_with(StopTask if _state.in_pool else StopRun, _stopping)
    watcher.start()


def _stopping(times: int) -> None:
    """Called before the script is told to stop, with how often it was told, this time included."""
    if times > _PATIENCE:
        stop_at_once()
    elif times == 1 and not _state.in_pool:
        watcher = _state.watcher
        when_stalled(stop_at_once, unless=lambda: _state.watcher is not watcher)
