"""A progress line at the bottom of the terminal."""

from __future__ import annotations

import _thread
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from gradgate.checker.reports import counted, duration

_EVERY_SECONDS = 0.25
_FEWEST_ROWS = 8


def write_error(text: str) -> None:
    """Write to the original standard error: the script may have replaced or closed ``sys.stderr``."""
    with suppress(OSError):
        os.write(2, text.encode())


class Progress:
    """Reserves the last row of the terminal, as apt does, so that the script's output scrolls only above this row.

    After each update of the row, the cursor returns to its place. Nothing is drawn if standard error is not a
    terminal, or in continuous integration, whose logs would record every update.
    """

    def __init__(self, *, enabled: bool) -> None:
        drawn = os.environ.get("TERM") not in (None, "", "dumb", "unknown")
        self._enabled = enabled and sys.stderr.isatty() and drawn and not os.environ.get("CI")
        self._dim = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[22m")
        self._pid = os.getpid()
        self._rows = 0  # the terminal's height when the last row was reserved; 0 before that
        self._drawing = _thread.allocate_lock()

    def start(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Start to show the optimizer steps and backward calls, which ``counts`` returns."""
        if self._enabled:
            # The script would see a threading.Thread in threading.enumerate().
            _thread.start_new_thread(self._run, (counts, time.perf_counter()))

    def stop(self) -> None:
        """Release the row. In a forked child, which draws nothing, do nothing."""
        if not self._enabled or os.getpid() != self._pid:
            return
        self._enabled = False
        with self._drawing:
            if self._rows:
                write_error(f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8")

    def _run(self, counts: Callable[[], tuple[int, int]], began: float) -> None:
        time.sleep(1.0)  # shorter runs show no progress
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
            # Move one row down to make space, then limit scrolling to all rows but the last.
            write_error(f"\x1bD\x1b[1A\x1b7\x1b[1;{rows - 1}r\x1b8")
            self._rows = rows
        steps, backwards = counts
        seen = f"{counted(steps, 'step')}, {counted(backwards, 'backward call')}"
        text = f"gradgate  {seen if steps or backwards else 'no backward call yet'}, {duration(seconds)}"
        write_error(f"\x1b7\x1b[{rows};1H\x1b[2K{self._dim[0]}{text[: columns - 1]}{self._dim[1]}\x1b8")
