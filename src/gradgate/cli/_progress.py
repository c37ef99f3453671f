"""A line at the bottom of the terminal that shows the progress of the watched script."""

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
    """Write to standard error directly, because the script may have replaced or closed ``sys.stderr``."""
    with suppress(OSError):
        os.write(2, text.encode())


class Progress:
    """Reserves the last row of the terminal, as apt does, so that the script's output cannot collide with it.

    The rows above still scroll, and the cursor returns to its place after each update of the line. Nothing is drawn
    if standard error is not a terminal, or in continuous integration, whose logs would record every frame.
    """

    def __init__(self, *, enabled: bool) -> None:
        drawn = os.environ.get("TERM") not in (None, "", "dumb", "unknown")
        self._enabled = enabled and sys.stderr.isatty() and drawn and not os.environ.get("CI")
        self._dim = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[22m")
        self._pid = os.getpid()
        self._rows = 0  # of the terminal when the last row was reserved; 0 if it is not
        self._drawing = _thread.allocate_lock()

    def start(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Start showing what ``counts`` returns: optimizer steps and backward calls."""
        if self._enabled:
            # Not a threading.Thread: the script would see that in threading.enumerate().
            _thread.start_new_thread(self._run, (counts, time.perf_counter()))

    def stop(self) -> None:
        """Release the row. A forked child draws nothing and has nothing to release."""
        if not self._enabled or os.getpid() != self._pid:
            return
        self._enabled = False
        with self._drawing:
            if self._rows:
                write_error(f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8")

    def _run(self, counts: Callable[[], tuple[int, int]], began: float) -> None:
        time.sleep(1.0)  # a shorter run needs no progress
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
            # Make room by moving one row down in the same column, then let all rows but the last scroll.
            write_error(f"\x1bD\x1b[1A\x1b7\x1b[1;{rows - 1}r\x1b8")
            self._rows = rows
        steps, backwards = counts
        seen = f"{counted(steps, 'step')}, {counted(backwards, 'backward call')}"
        text = f"gradgate  {seen if steps or backwards else 'no backward call yet'}, {duration(seconds)}"
        write_error(f"\x1b7\x1b[{rows};1H\x1b[2K{self._dim[0]}{text[: columns - 1]}{self._dim[1]}\x1b8")
