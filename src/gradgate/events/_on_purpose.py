"""What gradgate itself does to gradients is meant: it says so, and no rule takes it for a mistake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Depth(threading.local):
    value = 0


_depth = _Depth()


@contextmanager
def on_purpose() -> Iterator[None]:
    """Say that what this thread does within is an act of gradgate, which divides, clears and cuts by itself."""
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1


def is_on_purpose() -> bool:
    """Say whether this thread is in such an act."""
    return _depth.value > 0
