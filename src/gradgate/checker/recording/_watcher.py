"""Watch a run and return its log."""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, Literal

import torch

from gradgate.call_sites import call_mine
from gradgate.checker.recording._parts import Parts, install, table
from gradgate.checker.recording._patches import show_warnings_at_callers
from gradgate.checker.recording._recorder import Recorder, StopRun
from gradgate.checker.recording._work import renew_lock
from gradgate.events import Ended, Event, Log, Span, Values, listeners
from gradgate.torch_compat import anything_compiled, unseen


class Watcher:
    """Records the events of an unmodified script, from :meth:`start` to :meth:`stop`.

    The watcher does not change the script's results, and keeps none of its objects alive. :meth:`stop` restores
    torch's classes, even if several watchers overlap.

    Args:
        script: the file to watch, as named in the log.
        max_steps: raise :class:`StopRun` in the script after this many optimizer steps.
        max_seconds: raise it at the end of the step that follows this many seconds.
        strict: for tests: raise the watcher's own errors, which the log stores by default, and look closely at as
            many steps on a slow machine as on a fast one.
    """

    def __init__(
        self,
        script: str = "",
        max_steps: int | None = None,
        max_seconds: float | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._script = script
        self._recorder = Recorder(max_steps, max_seconds, strict=strict)
        self._parts = Parts(self._recorder)
        self._date = time.strftime("%Y-%m-%d %H:%M %z")
        self._started: float | None = None
        self._process = -1
        self._seconds: float | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._recorder.steps

    @property
    def backwards(self) -> int:
        """Backward calls so far. If there are none, calls of ``torch.autograd.grad``."""
        return self._recorder.backwards or self._recorder.derivatives

    @property
    def stop_raised(self) -> bool:
        """Whether StopRun was raised because the script reached ``max_steps`` or ``max_seconds``."""
        return self._recorder.raised > 0

    def stop_with(self, kind: type[StopRun], on_stop: Callable[[int], None]) -> None:
        """Set the exception that stops the script. ``on_stop(n)`` is called before the n-th raise."""
        self._recorder.stop_by, self._recorder.on_stop = kind, on_stop

    def start(self) -> None:
        """Begin to watch. A second call does nothing."""
        if self._started is not None:
            return
        self._started = time.perf_counter()
        self._process = os.getpid()
        unseen()  # probes torch's private names before any patch
        if self._script:
            call_mine(str(Path(self._script).absolute()))
            call_mine(self._script)
        recorder, parts = self._recorder, self._parts
        patches = recorder.patches
        for part in (recorder.lines, recorder.modules):
            with recorder.working():
                part.install(patches)
        with recorder.working():
            parts.steps.install()
        recorder.watch_closely = parts.watch_closely
        for patch in table(parts):
            install(recorder, patch, patches)
        patches.wrap(threading, "excepthook", _unless_stopped)
        show_warnings_at_callers(patches)
        patches.reach_imported()
        recorder.begin()
        listeners.append(self._emitted)
        patches.on_undo(lambda: listeners.remove(self._emitted))

    def stop(self, how: Literal["finished", "stopped", "failed"] = "finished") -> None:
        """Stop watching and restore torch. A second call does nothing."""
        recorder = self._recorder
        if self._started is None or self._seconds is not None:
            return
        if os.getpid() != self._process:
            renew_lock()
        if not recorder.left_off:
            recorder.add(Ended((), how))
        recorder.active = False
        recorder.patches.undo()
        with recorder.working():
            self._parts.names.finish()
            self._parts.ranks.ended()
        self._seconds = time.perf_counter() - self._started

    def log(self) -> Log:
        """Return the log so far."""
        recorder = self._recorder
        recorder.flush()
        if recorder.active:
            with recorder.working():
                self._parts.names.finish()
        started = self._started if self._started is not None else time.perf_counter()
        seconds = self._seconds if self._seconds is not None else time.perf_counter() - started
        rank, world, distributed = self._parts.ranks.position()
        not_judged = recorder.not_judged
        if (
            not not_judged
            and len(self._parts.steps.stepped) < len(recorder.optimizers)
            and anything_compiled()
        ):
            not_judged = (
                "The script uses torch.compile, and no step of an optimizer was seen. A compiled step can't be "
                "watched: check with TORCH_COMPILE_DISABLE=1."
            )
        return Log(
            self._script,
            {number: copy(record) for number, record in recorder.parameters.records.items()},
            {each: recorder.optimizer_names.get(each, "") for each in range(len(recorder.optimizers))},
            () if not_judged else recorder.events.events(),
            recorder.steps,
            self.backwards,
            seconds,
            recorder.seconds,
            rank,
            world,
            distributed,
            failures=tuple(recorder.failures),
            spans=tuple(itertools.starmap(Span, recorder.spans)),
            unseen=unseen(),
            not_judged=not_judged or recorder.left_off,
            circumstances=self._circumstances(),
            values=recorder.values.values() if not not_judged else Values(),
        )

    def _circumstances(self) -> dict[str, str]:
        """Return the command, date, device and versions of the run."""
        on_gpu = torch.cuda.is_initialized()
        threads = torch.get_num_threads()
        return {
            **({"command": shlex.join(sys.argv)} if self._script else {}),
            "date": self._date,
            "device": torch.cuda.get_device_name()
            if on_gpu
            else f"CPU, {threads} thread{'s' * (threads > 1)}",
            "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        }

    def _emitted(self, event: Event) -> None:
        recorder = self._recorder
        if recorder.active and not recorder.quiet:
            with recorder.working():
                recorder.add(dataclasses.replace(event, site=recorder.site()))


def _unless_stopped(original: Any, raised: threading.ExceptHookArgs) -> None:
    """Print the exception that ended a thread, as Python does, unless it is StopRun."""
    if not issubclass(raised.exc_type, StopRun):
        original(raised)
