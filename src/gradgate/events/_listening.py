"""Lets gradgate's own code emit events to the checker, and mark work that no rule should judge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradgate.events._records import Event

listeners: list[Callable[[Event], None]] = []
"""The active watchers. Each is called with every event that is emitted."""


def emit(make: Callable[[], Event]) -> None:
    """Make an event and pass it to the watchers. Without a watcher, make nothing."""
    if listeners:
        event = make()
        for listener in listeners:
            listener(event)


class _Depth(threading.local):
    value = 0


_depth = _Depth()


@contextmanager
def on_purpose() -> Iterator[None]:
    """Mark this thread's work in the block as gradgate's own, which divides, clears and detaches deliberately."""
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1


def is_on_purpose() -> bool:
    """Return whether this thread is in an :func:`on_purpose` block."""
    return _depth.value > 0
