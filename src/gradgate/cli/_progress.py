"""A line at the foot of the terminal that says how far the watched script has come."""

from __future__ import annotations

import _thread
import os
import shutil
import sys
import time
from collections.abc import Callable

from gradgate.checker.reports import counted, lasting

_EVERY_SECONDS = 0.25
_FEWEST_ROWS = 8


class Progress:
    """Keeps the last row of the terminal for itself, as apt does, so that no print of the script can meet it.

    The rows above scroll by themselves; the cursor is put back where it was after each drawing. It shows only where
    standard error is a terminal, and none that is recorded in continuous integration.
    """

    def __init__(self, *, enabled: bool) -> None:
        drawn = os.environ.get("TERM") not in (None, "", "dumb", "unknown")
        kept = bool(os.environ.get("CI"))  # what is drawn there goes into a log, frame by frame
        self._enabled = enabled and sys.stderr.isatty() and drawn and not kept
        self._dim = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[22m")
        self._pid = os.getpid()
        self._rows = 0  # of the terminal, when the last row was set apart; 0: it is not
        self._drawing = _thread.allocate_lock()

    def start(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Show from now on what ``counts`` says: optimizer steps and backward calls."""
        if self._enabled:
            # Not a threading.Thread: the script would see that among its own.
            _thread.start_new_thread(self._go_on, (counts, time.perf_counter()))

    def stop(self) -> None:
        """Give the row back. In a forked child nothing is drawn, so there is nothing to give back."""
        if not self._enabled or os.getpid() != self._pid:
            return
        self._enabled = False
        with self._drawing:
            if self._rows:
                self._write(f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8")

    def _go_on(self, counts: Callable[[], tuple[int, int]], began: float) -> None:
        time.sleep(1.0)  # a run that is over by then needs no progress
        while True:
            with self._drawing:
                if not self._enabled:
                    return
                self._draw(counts(), time.perf_counter() - began)
            time.sleep(_EVERY_SECONDS)

    def _draw(self, counts: tuple[int, int], seconds: float) -> None:
        columns, rows = shutil.get_terminal_size((80, 24))
        if rows < _FEWEST_ROWS:
            return
        if rows != self._rows:
            # One row down makes room, in the same column; then all rows but the last scroll.
            self._write(f"\x1bD\x1b[1A\x1b7\x1b[1;{rows - 1}r\x1b8")
            self._rows = rows
        steps, backwards = counts
        seen = f"{counted(steps, 'step')}, {counted(backwards, 'backward call')}"
        text = f"gradgate  {seen if steps or backwards else 'no backward call yet'}, {lasting(seconds)}"
        self._write(f"\x1b7\x1b[{rows};1H\x1b[2K{self._dim[0]}{text[: columns - 1]}{self._dim[1]}\x1b8")

    @staticmethod
    def _write(text: str) -> None:
        try:
            os.write(2, text.encode())  # past sys.stderr, which the script may have replaced
        except OSError:
            return
