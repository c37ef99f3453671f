"""The watcher of this process, and what becomes of it where the process is forked.

A child gets a watcher of its own, and leaves its log in the run's folder when it ends. A child that only loads data
gets none. Nothing is imported for any of this: the watcher starts when torch has been imported, whoever does that.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gradgate.running._imports import after_import
from gradgate.running._settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradgate.watcher import Watcher

# Processes that serve others and train nothing, by the module that their function is from.
_SERVANTS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer")


class _Anchor:
    """multiprocessing keeps what it is to do in a child only as long as this lives."""


@dataclass
class _State:
    settings: Settings | None = None  # None: this process is not watched
    watcher: Watcher | None = None
    on_swallowed: Callable[[], None] | None = None
    hooked: bool = False
    is_child: bool = False
    anchor: _Anchor = field(default_factory=_Anchor)


_state = _State()


def watch_this_process(settings: Settings, on_swallowed: Callable[[], None]) -> None:
    """Watch the process that the user started, and prepare its children."""
    _state.settings, _state.on_swallowed = settings, on_swallowed
    after_import("torch", _start)
    _hook_into_forks()


def watch_this_child(settings: Settings, *, of_multiprocessing: bool) -> None:
    """Watch an interpreter that the run started, from the time when it has imported torch.

    One of multiprocessing's is watched only from the time when it is known what it is for.
    """
    _state.settings, _state.on_swallowed, _state.is_child = settings, _leave, True
    if of_multiprocessing:
        after_import("multiprocessing.context", _hook_into_spawned)
    else:
        after_import("torch", _start)
        after_import("torch", _leave_log_at_exit)
    _hook_into_forks()


def current() -> Watcher | None:
    """Return the watcher of this process, once torch has been imported."""
    return _state.watcher


def is_child() -> bool:
    """Say whether this process was forked off, or started, by the one that the user started."""
    return _state.is_child


def let_go() -> None:
    """Forget the run: what happens in this process, and in its children to come, is nobody's business."""
    _state.settings = _state.watcher = _state.on_swallowed = None


def leave_log(how: Literal["finished", "stopped", "failed"] = "finished") -> None:
    """Stop watching this child, and leave its log for the process that the user started."""
    settings, watcher = _state.settings, _state.watcher
    let_go()
    if settings is None or watcher is None:
        return
    # Called by multiprocessing the error is on its way; called at the interpreter's exit it has been shown.
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    watcher.stop("failed" if isinstance(error, Exception) else how)
    if not (watcher.steps or watcher.backwards):
        return
    from gradgate.events import to_json

    path = Path(settings.folder) / f"{os.getpid()}-{time.time_ns()}.json"
    with suppress(OSError):  # the run was given up, and its folder removed
        path.with_suffix(".part").write_text(json.dumps(to_json(watcher.log())), encoding="utf-8")
        path.with_suffix(".part").rename(path)  # nobody reads half a log


def _leave_log_at_exit() -> None:
    atexit.register(leave_log)


def _leave() -> None:
    """End a child that cannot be stopped otherwise."""
    leave_log("stopped")
    end_at_once(0)


def end_at_once(code: int) -> NoReturn:
    """End the process without a further line of the script, and lose nothing that it has written."""
    # type(), and not isinstance: that would ask each object for its __class__, which some compute, and warn.
    for file in [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]:
        with suppress(Exception):
            file.flush()
    os._exit(code)


def _start() -> None:
    if _state.settings is None or _state.watcher is not None:
        return
    from gradgate.watcher import Watcher

    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None) or ""
    _state.watcher = Watcher(script, _state.settings.max_steps)
    _state.watcher.on_swallowed = _state.on_swallowed
    _state.watcher.start()


def _hook_into_forks() -> None:
    if _state.hooked:
        return
    _state.hooked = True
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    after_import("multiprocessing.util", _hook_into_multiprocessing)


def _forked() -> None:
    """Give up the parent's watcher in a forked child, and start anew where it is known that this is worth it."""
    inherited, _state.watcher = _state.watcher, None
    if _state.settings is None:
        return
    _state.is_child, _state.on_swallowed = True, _leave
    if inherited is not None:
        inherited.stop()
    if sys._getframe(1).f_globals.get("__name__", "").startswith("multiprocessing."):
        return  # _began_child is called when the child knows what it is for
    if inherited is not None:
        _start()


def _hook_into_multiprocessing() -> None:
    from multiprocessing import util

    util.register_after_fork(_state.anchor, _began_child)


def _hook_into_spawned() -> None:
    from multiprocessing import context

    # What a forked child does at this point, a spawned one leaves out: it has inherited nothing.
    context.SpawnProcess._after_fork = staticmethod(_began_child)  # type: ignore[attr-defined]


def _began_child(_: Any = None) -> None:
    """Start watching a process of multiprocessing, forked or spawned, before it does what it is for."""
    from multiprocessing import process, util

    if _state.settings is None:
        return
    target = getattr(process.current_process(), "_target", None)
    if (getattr(target, "__module__", None) or "").startswith(_SERVANTS):
        let_go()
        return
    # These children end by os._exit: atexit is not run, multiprocessing's finalizers are, the smallest last.
    util.Finalize(None, leave_log, exitpriority=-100)
    after_import("torch", _start)
