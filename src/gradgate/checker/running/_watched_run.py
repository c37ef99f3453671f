"""Run and watch a program and its child processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gradgate.checker.running import _process
from gradgate.checker.running._children import hook_into_forks
from gradgate.checker.running._exits import give_back_termination, guard_exits, guard_termination
from gradgate.checker.running._logs import ChildLogs
from gradgate.checker.running._script import How, Program, run
from gradgate.events import Log
from gradgate.torch_compat import end_threads, run_exit_functions


class WatchedRun:
    """Runs a program and watches it. Each process stops after ``max_steps`` optimizer steps, or the next step
    after ``max_seconds``.

    ``on_end`` is called once, with the program's outcome, exit code, and logs of all processes. It returns the exit
    code for this process, which is used even if the program ends the process itself.
    """

    def __init__(
        self,
        program: Program,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        on_end: Callable[[How, int, list[Log]], int],
    ) -> None:
        self._program = program
        self._on_end = on_end
        self._limits = max_steps, max_seconds
        self._children: ChildLogs | None = None
        self._path, self._folder = list(sys.path), Path.cwd()
        self._ending = threading.RLock()
        self._code: int | None = None
        self._notes: list[str] = []

    def run(self) -> int:
        """Run the program and its children to the end, and return the exit code.

        A child that the program forked also returns from this method, with its own exit code.
        """
        self._children = ChildLogs(*self._limits)
        _process.watch_this_process(self._children.settings, self._end)
        guard_exits()
        guard_termination()
        hook_into_forks()
        how, code = run(self._program, self._notes)
        if _interrupted_at_exit():
            how, code = "interrupted", 128 + signal.SIGINT
        if _process.state.is_child:
            _process.leave_log(how)
            return code
        return self._end(how, code)

    def _end(self, how: How, code: int) -> int:
        with self._ending:  # any other thread waits here until the process ends
            if self._code is None:
                self._code = self._ended(how, code)
        return self._code

    def _ended(self, how: How, code: int) -> int:
        watcher = _process.state.watcher
        _process.forget_run()
        give_back_termination()
        logs = []
        if watcher is not None:
            if how == "finished" and watcher.stop_raised:
                how = "stopped"  # the script caught StopRun and returned
            watcher.stop("stopped" if how == "interrupted" else how)
            log = watcher.log()
            logs = [replace(log, unseen=(*log.unseen, *self._notes))]
        if self._children is not None:
            logs += self._children.take()
        # From here on, import gradgate's modules, not modules of the same names in the script's folder. The report
        # shows paths relative to the user's working directory.
        sys.path[:] = self._path
        with suppress(OSError):
            os.chdir(self._folder)
        return self._on_end(how, code, logs)


def _interrupted_at_exit() -> bool:
    """Wait for threads and run the atexit functions. Return whether Ctrl-C interrupted the wait.

    Both come before the report, so that the report is the last output, and children that the script did not join
    have written their logs.
    """
    try:
        end_threads()
        run_exit_functions()
    except KeyboardInterrupt:
        return True
    return False
