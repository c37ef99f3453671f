"""Run the watcher's own work in one thread at a time, unwatched and timed."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from gradgate.torch_compat import as_torch_itself


class WatchersAtWork(threading.local):
    """Counts the watchers at work in this thread. No watcher records their work."""

    depth = 0
    # One lock for all watchers. With separate locks, two watchers could deadlock.
    lock = threading.RLock()


watching = WatchersAtWork()


def renew_lock() -> None:
    """Make a new lock in a forked process, which may lack the thread that holds the old lock."""
    WatchersAtWork.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)


class Work:
    """A context for a piece of the watcher's work. A class is twice as fast as a generator.

    Attributes:
        clock: the time on the recorder's clock, which stops during the work.
    """

    __slots__ = ("_as_torch", "_lock", "_recorder", "_start", "clock")

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def __enter__(self) -> Work:
        self._start = time.perf_counter()
        self.clock = self._start - self._recorder.seconds
        self._lock = watching.lock
        self._lock.acquire()
        self._as_torch = as_torch_itself.use()
        self._as_torch.__enter__()
        watching.depth += 1
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> bool:
        watching.depth -= 1
        self._as_torch.__exit__(None, None, None)
        self._lock.release()
        self._recorder.seconds += time.perf_counter() - self._start
        return error is not None and bool(self._recorder.failed(error))
