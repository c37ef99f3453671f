"""Keep signals waiting while something must not stop half-way."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class uninterrupted:  # noqa: N801 - it is used like the functions of contextlib
    """Deliver SIGINT and SIGTERM after the block rather than inside it.

    Only the main thread receives signals in Python; elsewhere there is nothing to hold back. Nor is there
    for a signal without a handler in Python: it ends the process or does nothing, and is left alone.

    A handler that raises may run between any two calls, also while handlers are installed and given back. Giving
    back is therefore repeated by nested ``finally`` blocks, each of which outlasts one more signal.
    """

    def __init__(self) -> None:
        self._usual: dict[signal.Signals, Any] = {}
        self._held: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        usual = {number: signal.getsignal(number) for number in _SIGNALS}
        self._usual = {number: handler for number, handler in usual.items() if callable(handler)}
        complete = False
        try:
            for number in self._usual:
                signal.signal(number, self._hold)
            complete = True
        finally:
            if not complete:
                try:
                    self._give_back()
                finally:
                    self._leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _hold(self, received: int, frame: FrameType | None) -> None:
        self._held.append(received)

    def _leave(self) -> None:
        try:
            try:
                try:
                    self._give_back()
                finally:
                    self._give_back()
            finally:
                self._give_back()
        finally:
            with ExitStack() as stack:  # each is delivered, also if the one before it raises
                for received in reversed(self._held):
                    stack.callback(signal.raise_signal, received)

    def _give_back(self) -> None:
        for number, handler in list(self._usual.items()):
            if signal.getsignal(number) == self._hold:  # a handler may have installed another since
                signal.signal(number, handler)
            self._usual.pop(number, None)  # what is done needs no second look
