"""What gradgate itself does to gradients is meant: it says so, and no rule takes it for a mistake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Depth(threading.local):
    value = 0


_depth = _Depth()
_trials = _Depth()


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


@contextmanager
def trial() -> Iterator[None]:
    """Say that what this thread does within only finds something out: it is no part of the training."""
    _trials.value += 1
    try:
        yield
    finally:
        _trials.value -= 1


def is_trial() -> bool:
    """Say whether this thread only finds something out."""
    return _trials.value > 0
