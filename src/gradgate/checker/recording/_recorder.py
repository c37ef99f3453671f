"""The shared state of the watcher's parts: events, numbers of objects, and when to look closely.

A *close look* also records data that takes time, such as samples of values and the line of each graph node.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from gradgate.call_sites import here
from gradgate.checker.recording._node_lines import Lines
from gradgate.checker.recording._patches import Patches
from gradgate.checker.recording._registry import EventBuffer, Modules, Numbers, Parameters
from gradgate.checker.recording._values import ValueGraph
from gradgate.checker.recording._work import Work, watching
from gradgate.events import Doing, Event, Gap, Written

_FIRST_STEPS = 60  # first steps under a close look
_FIRST_CALLS = 480  # in a loop without an optimizer: first backward calls under a close look
_LEAST_STEPS = 12  # first steps under a close look, however slow
_SLOW_SECONDS = 2.0  # the longest close look
_LEAST_BUSY = 0.25  # assumed minimum of CPU time / wall time
# In a short run, the close look may take this many seconds, plus this share of the run so far.
_PATIENT_SECONDS, _PATIENT_SHARE = 0.5, 0.3
_BLOCK = 8  # later, the watcher looks closely at blocks of this many steps, at growing intervals
_MOST_FAILURES = 4  # tracebacks of the watcher's own errors that are kept
_MOST_PARAMETERS = 50_000  # a run that keeps creating models is watched only up to here
_MOST_SPANS = 6_000
_MOST_SECOND_LOOKS = 16  # how often a new model or optimizer may start another close look


class StopRun(SystemExit):
    """Raised out of the watched script after the requested number of steps."""


class StopTask(StopRun, Exception):  # noqa: N818
    """Raised in place of StopRun in a pool's task. The worker survives an Exception, but not a SystemExit."""


class _Thread(threading.local):
    """State per thread. Autograd numbers the nodes of each thread separately, from 0."""

    quiet = 0  # depth of library calls whose writes and clearing are ignored
    setting_mode = False  # whether Module.train runs, which calls itself for each child
    closures = 0  # depth of optimizer steps with a closure
    newest_key = -1  # number of the newest graph node seen
    last_key = -1  # newest_key at the last step


class Recorder:
    """The state of a watcher. All its parts record their events here."""

    site = staticmethod(here)  # the user's line that is running

    def __init__(
        self, max_steps: int | None = None, max_seconds: float | None = None, *, strict: bool = False
    ) -> None:
        self.strict = strict
        self.failures: list[str] = []
        self.events = EventBuffer()
        self.spans: list[tuple[Doing, float, float, int]] = []
        self.left_off = ""  # the reason if the watcher stopped early
        self.not_judged = ""  # the reason if the rules can't judge the events
        self.patches = Patches()
        self.watch_closely: Callable[[], Patches] = Patches  # installs the patches of a close look
        self._closely: Patches | None = None
        self.lines = Lines(self.failed)
        self.values = ValueGraph(self)
        self.modules = Modules()
        self.parameters = Parameters()
        self.optimizers: Numbers[torch.optim.Optimizer] = Numbers()
        self.optimizer_names: dict[int, str] = {}
        self.schedulers: Numbers[Any] = Numbers()
        self.scalers: Numbers[Any] = Numbers()
        self.loaders: Numbers[Any] = Numbers()
        # Number of a node that a gradient scaler made -> the scaler's number, or ~number if the scaler is disabled.
        self.scaled: dict[int, int] = {}
        self.max_steps = math.inf if max_steps is None else max_steps
        self._stop_at = math.inf if max_seconds is None else time.perf_counter() + max_seconds
        self.on_stop: Callable[[int], None] = lambda times: None
        self.stop_by: type[StopRun] = StopRun
        self.raised = 0  # times StopRun was raised
        self.steps = 0
        self.backwards = 0
        self.derivatives = 0  # calls of autograd.grad
        self.looking = False
        self.resting = False  # whether a loop without an optimizer is no longer recorded
        self.active = False
        self.seconds = 0.0  # spent watching
        self._began = self.clock
        self._busy = 0.0  # the same in CPU time, so that a busy machine doesn't shorten the close look
        # At the last measurement: wall time, seconds spent watching, CPU time.
        self._measured = time.perf_counter(), 0.0, time.process_time()
        # A context for the watcher's own work: one thread at a time, unwatched, timed separately. Its errors
        # don't reach the script.
        self.working: Callable[[], Work] = functools.partial(Work, self)
        self.thread = _Thread()
        self.in_backward = 0  # backward passes running in any thread: autograd has one thread per device
        self._written: tuple[tuple[Any, ...], set[int]] | None = None
        self._next_block = _FIRST_STEPS
        self._second_looks = 0
        self._look_until = 0

    @property
    def quiet(self) -> int:
        """Nonzero while this thread runs library or gradgate code whose writes and clearing are ignored."""
        return self.thread.quiet + watching.depth

    def add(self, event: Event) -> None:
        """Record an event."""
        if self._written is not None:
            self.flush()
        self.events.add(event)

    def wrote(self, target: Any, number: int, **facts: Any) -> None:
        """Record a write to one parameter. Identical writes to several parameters become one event."""
        key = (target, tuple(sorted(facts.items(), key=lambda item: item[0])))
        if self._written is not None and self._written[0] == key and number not in self._written[1]:
            self._written[1].add(number)
            return
        self.flush()
        self._written = (key, {number})

    def flush(self) -> None:
        """Record the writes gathered so far."""
        if self._written is not None:
            (target, facts), numbers = self._written
            self._written = None
            self.events.add(Written(target=target, parameters=self.parameters.same(numbers), **dict(facts)))

    def failed(self, failure: BaseException) -> bool:
        """Keep one of the watcher's own errors for the report. Return whether to hide it from the script."""
        if not isinstance(failure, Exception) or self.strict:
            return False
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append("".join(traceback.format_exception(failure, limit=-3)))
        return True

    @property
    def clock(self) -> float:
        """Seconds on a clock that stands still while the watcher works."""
        return time.perf_counter() - self.seconds

    def took(self, doing: Doing, start: float, at: int) -> None:
        """Record an activity that ends now and began at clock time ``start``, after ``at`` events."""
        if len(self.spans) < _MOST_SPANS:
            self.spans.append((doing, start, time.perf_counter() - self.seconds, at))

    def stepped(self) -> None:
        """Count a step and decide whether to look closely at the next."""
        self.steps += 1
        self.values.stepped()
        if len(self.parameters.records) > _MOST_PARAMETERS:
            self.left_off = (
                f"The run has made more than {_MOST_PARAMETERS:,} parameters by step {self.steps}. "
                "Later steps were not watched."
            )
            self.active = False
            self._look(False)
            return
        self.thread.last_key = self.thread.newest_key
        if self.looking:
            self._measure()
        if self.steps < _FIRST_STEPS:
            patience = min(_SLOW_SECONDS, _PATIENT_SECONDS + _PATIENT_SHARE * (self.clock - self._began))
            if self.strict or self.steps < _LEAST_STEPS or self._busy <= patience:
                self._look(True)
                return
        since = self.steps - self._next_block
        if since >= _BLOCK:
            self._next_block = 2 * self.steps
        self._look(0 <= since < _BLOCK or self.steps < self._look_until)

    def _measure(self) -> None:
        """Estimate the watcher's CPU time. Reading the clock is a system call, so do this only once per step."""
        now = time.perf_counter(), self.seconds, time.process_time()
        wall, watching, busy = (after - before for after, before in zip(now, self._measured, strict=True))
        self._measured = now
        # On a busy machine, time spent waiting for a CPU must not count.
        self._busy += watching * min(max(busy / wall, _LEAST_BUSY), 1.0)

    def rests(self) -> bool:
        """Return whether a loop without an optimizer is no longer recorded.

        Only a close look sees the updates of such a loop, so recording ends together with the close look.
        """
        if (
            not self.resting
            and self.backwards >= _FIRST_CALLS
            and not self.steps
            and not len(self.optimizers)
        ):
            self.resting = True
            self.add(Gap((), 1))
            self._look(False)
        return self.resting

    def wake(self) -> None:
        """Record again, because the script has an optimizer now."""
        if self.resting:
            self.resting = False
            self._look(True)

    def look_again(self) -> bool:
        """Look closely at the next steps, because the script made a model or optimizer in the middle of the run.

        Return whether this call started the close look.
        """
        if self._second_looks >= _MOST_SECOND_LOOKS or self._look_until == self.steps + _BLOCK:
            return False
        self._second_looks += 1
        self._look_until = self.steps + _BLOCK
        self._look(True)
        return True

    def begin(self) -> None:
        """Record from now on, closely at first."""
        self.active = True
        self._look(True)
        self.patches.on_undo(lambda: self._look(False))
        self.values.begin()
        self.patches.on_undo(self.values.end)

    def _look(self, closely: bool) -> None:
        if closely == self.looking:
            return
        self.looking = closely
        if closely:
            self.lines.on()
            self._closely = self.watch_closely()
        else:
            self.lines.off()
            if self._closely is not None:
                self._closely.undo()

    def stop_if_due(self) -> None:
        """Raise StopRun after the requested number of steps or seconds.

        In a loop without an optimizer, each backward call counts as a step.
        """
        steps = self.steps if len(self.optimizers) else self.backwards + self.derivatives
        if time.perf_counter() >= self._stop_at:
            self.max_steps = min(self.max_steps, steps + 1)  # the step that is going on is the last one
        if steps < self.max_steps or not (self.active or self.left_off):
            return
        self.raised += 1
        self.on_stop(self.raised)
        raise self.stop_by
