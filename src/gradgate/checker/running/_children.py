"""Watch the child processes of a watched process: forks, new interpreters, and multiprocessing's processes.

Each child has its own watcher, and writes its log to the run's folder when it ends. Children that only load data,
and the workers of pools, are not watched.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from gradgate.checker.running import _process
from gradgate.checker.running._exits import guard_exits
from gradgate.checker.running._imports import after_import
from gradgate.checker.running._logs import Settings
from gradgate.torch_compat import before_spawned, process_target

# Functions of these modules run in processes that are not watched.
_HELPERS = (
    *("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer"),
    *("multiprocessing.pool", "torch.multiprocessing.pool"),  # they are killed at their end, with their logs
)


def prepare_child(*, of_multiprocessing: bool) -> None:
    """Prepare an interpreter that a watched script started. Runs before any other code there."""
    settings = Settings.from_environment()
    if settings is None:
        return
    _process.watch_this_child(settings)
    if of_multiprocessing:  # it may turn out to be a helper process
        after_import("multiprocessing.context", lambda: before_spawned(_began))
    else:
        _process.started_alone()
    guard_exits()
    hook_into_forks()


@functools.cache
def hook_into_forks() -> None:
    """Watch the children that this process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    after_import("multiprocessing.util", _hook_into_children)


def _forked() -> None:
    had_one = _process.forked()
    if sys._getframe(1).f_globals.get("__name__", "").startswith("multiprocessing."):
        return  # multiprocessing calls _began when the process's target is known
    if had_one:
        _process.start()


def _hook_into_children() -> None:
    from multiprocessing import util

    util.register_after_fork(_began, _began)  # the first argument, a weakly held key, is passed to the second


def _began(_: Any = None) -> None:
    """Start to watch a process of multiprocessing, forked or spawned, before its target runs."""
    from multiprocessing import process, util

    if _process.state.settings is None:
        return
    target = process_target(process.current_process())
    module = getattr(target, "__module__", None) or ""
    if module.startswith(_HELPERS):
        _process.forget_run()
        return
    # These children run multiprocessing's finalizers, but not atexit. The lowest priority runs last.
    util.Finalize(None, _process.leave_log, exitpriority=-100)
    after_import("torch", _process.start)
