"""Keep signals waiting while something must not stop half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM after the block rather than inside it.

    Only the main thread receives signals in Python; elsewhere there is nothing to hold back. A handler
    that was not installed from Python cannot be put back, so its signal is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[signal.Signals] = []
    usual = {number: signal.getsignal(number) for number in _SIGNALS}
    changed = [number for number, handler in usual.items() if handler is not None]
    for number in changed:
        signal.signal(number, lambda received, _: held.append(signal.Signals(received)))
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, usual[number])
        with ExitStack() as stack:  # each is delivered, also if the one before it raises
            for number in reversed(held):
                stack.callback(signal.raise_signal, number)
