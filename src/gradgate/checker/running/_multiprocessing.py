"""The processes that a watched one forks off, or starts through multiprocessing.

A child gets a watcher of its own, and leaves its log in the run's folder when it ends. A child that only loads data
gets none.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gradgate.checker.running import _process
from gradgate.checker.running._imports import after_import
from gradgate.torch_compat import before_spawned, process_arguments, process_target

# Processes that serve others and train nothing, by the module that their function is from.
_SERVANTS = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_sharer")
_POOLS = ("multiprocessing.pool", "torch.multiprocessing.pool")


class _Anchor:
    """multiprocessing keeps what it is to do in a child only as long as this lives."""


_anchor = _Anchor()
_hooked: list[str] = []


def hook_into_forks() -> None:
    """Prepare for the children that this process forks off, however it does that."""
    if "forks" in _hooked:
        return
    _hooked.append("forks")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    after_import("multiprocessing.util", _hook_into_children)


def hook_into_spawned() -> None:
    """Watch this interpreter of multiprocessing's from the time when it is known what it is for."""
    after_import("multiprocessing.context", _hook_into_start)


def _forked() -> None:
    had_one = _process.forked()
    if sys._getframe(1).f_globals.get("__name__", "").startswith("multiprocessing."):
        return  # _began is called when the child knows what it is for
    if had_one:
        _process.start()


def _hook_into_children() -> None:
    from multiprocessing import util

    util.register_after_fork(_anchor, _began)


def _hook_into_start() -> None:
    before_spawned(_began)


def _began(_: Any = None) -> None:
    """Start watching a process of multiprocessing, forked or spawned, before it does what it is for."""
    from multiprocessing import process, util

    if _process.settings() is None:
        return
    current = process.current_process()
    module = getattr(process_target(current), "__module__", None) or ""
    if module.startswith(_SERVANTS):
        _process.let_go()
        return
    if module in _POOLS:
        _process.serves_a_pool()
        _leave_logs_with_results(current)
    # These children end by os._exit: atexit is not run, multiprocessing's finalizers are, the smallest last.
    util.Finalize(None, _process.leave_log, exitpriority=-100)
    after_import("torch", _process.start)


def _leave_logs_with_results(worker: Any) -> None:
    """Leave the log before each result is handed over: ``with Pool() as pool:`` kills its workers at the end."""
    arguments = process_arguments(worker)
    if len(arguments) < 2:
        return
    results = arguments[1]
    hand_over = results.put

    def put(result: Any) -> None:
        _process.leave_log_so_far()
        hand_over(result)

    results.put = put
