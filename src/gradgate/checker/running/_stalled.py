"""End a program that was told to stop and waits for ever: for a thread that has stopped, for a queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gradgate.torch_compat import running_children

_SECONDS = 5.0  # without doing anything
_SECONDS_WITH_CHILDREN = 30.0  # these may be at work
_LITTLE = 0.02  # of the time, that counts as nothing
_TICK = 0.25


def when_stalled(act: Callable[[], None], *, unless: Callable[[], bool]) -> None:
    """Call ``act``, from a thread, when this process has done next to nothing for some seconds.

    Args:
        act: what is called.
        unless: asked from time to time; where it says True the matter is closed.
    """
    threading.Thread(target=_wait, args=(act, unless), name="gradgate", daemon=True).start()


def _wait(act: Callable[[], None], unless: Callable[[], bool]) -> None:
    since, used = time.monotonic(), time.process_time()
    while not unless():
        time.sleep(_TICK)
        now, busy = time.monotonic(), time.process_time()
        if busy - used > _LITTLE * max(now - since, 1.0):
            since, used = now, busy
        if now - since > (_SECONDS_WITH_CHILDREN if running_children() else _SECONDS) and not unless():
            act()
            return
