"""Delivers signals after a block of code rather than inside it."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Any

from gradgate.torch_compat import get_signal_handler, set_signal_handler

_SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))  # looking up enum members is slow


class uninterrupted:  # noqa: N801 - it is used like the functions of contextlib
    """Deliver SIGINT and SIGTERM after the block rather than inside it.

    Python delivers signals only to the main thread, so other threads have nothing to delay. A signal without a
    Python handler ends the process or does nothing, and is left alone.

    A handler that raises may run between any two calls, even while handlers are installed or restored. Nested
    ``finally`` blocks therefore repeat the restore; each block survives one more signal.
    """

    def __init__(self) -> None:
        self._usual: dict[int, Any] = {}
        self._held: list[int] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _SIGNALS:
            handler = get_signal_handler.use(number)
            if callable(handler):
                self._usual[number] = handler
        complete = False
        try:
            for number in self._usual:
                set_signal_handler.use(number, self._hold)
            complete = True
        finally:
            if not complete:
                try:
                    self._give_back()
                finally:
                    self.__exit__()

    def _hold(self, received: int, frame: FrameType | None) -> None:
        self._held.append(received)

    def __exit__(self, *_: object) -> None:
        try:
            try:
                try:
                    self._give_back()
                finally:
                    if self._usual:
                        self._give_back()
            finally:
                if self._usual:
                    self._give_back()
        finally:
            if self._held:
                with ExitStack() as stack:  # deliver each signal, even if the previous handler raises
                    for received in reversed(self._held):
                        stack.callback(signal.raise_signal, received)

    def _give_back(self) -> None:
        for number, handler in list(self._usual.items()):
            if get_signal_handler.use(number) == self._hold:  # a handler may have installed another one since
                set_signal_handler.use(number, handler)
            self._usual.pop(number, None)  # handlers are restored; nothing to repeat
