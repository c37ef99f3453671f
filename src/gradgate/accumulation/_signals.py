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

    Only the main thread receives signals in Python; elsewhere there is nothing to hold back. Nor is there
    for a signal without a handler in Python: it ends the process or does nothing, and is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    usual = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if callable(usual[number])]
    for number in handled:
        signal.signal(number, lambda received, _: held.append(received))
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, usual[number])
        with ExitStack() as stack:  # each is delivered, also if the one before it raises
            for received in reversed(held):
                stack.callback(signal.raise_signal, received)
