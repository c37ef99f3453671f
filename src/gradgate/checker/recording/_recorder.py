"""Hold what all parts of the watcher share: the events, the numbers of objects, and when to look closely."""

from __future__ import annotations

import functools
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
from gradgate.checker.recording._work import Work, watching
from gradgate.events import Doing, Event, Gap, Written

_FIRST_STEPS = 60  # steps that are looked at closely
_FIRST_CALLS = 480  # backward calls, in a loop without an optimizer
_LEAST_STEPS = 12  # steps that are looked at closely even if that is slow
_SLOW_SECONDS = 2.0
_LEAST_BUSY = 0.25  # the process is assumed to run for at least this share of the time
_PATIENT_SECONDS, _PATIENT_SHARE = (
    0.5,
    0.3,
)  # a short run's close look may take this long, plus this share of it
_BLOCK = 8  # later, blocks of this many steps are looked at, at growing distances
_MOST_FAILURES = 4  # the watcher's own errors that are kept
_MOST_PARAMETERS = 50_000  # a run may keep creating models
_MOST_SPANS = 6_000
_MOST_SECOND_LOOKS = 16  # times that something new makes the watcher look closely again


class StopRun(SystemExit):
    """Raised out of the watched script after the requested number of steps."""


class StopTask(StopRun, Exception):  # noqa: N818
    """Raised in place of StopRun in a pool's task. The worker passes errors on, and must survive this one."""


class _Thread(threading.local):
    """What each thread keeps for itself. Autograd numbers the nodes of each thread from 0."""

    quiet = 0  # running library calls, whose own writes and clearing are ignored
    closures = 0  # running steps that have a closure
    newest_key = -1  # the newest graph node that was seen
    last_key = -1  # the newest one at the last step


class Recorder:
    """The state of a watcher. Its parts record events here, from wherever torch calls them."""

    site = staticmethod(here)  # returns where the user's code is

    def __init__(self, max_steps: int | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        self.failures: list[str] = []
        self.events = EventBuffer()
        self.spans: list[tuple[Doing, float, float, int]] = []
        self.left_off = ""  # why the watcher stopped looking, if it did
        self.not_judged = ""  # why the events can't be judged, if they can't
        self.patches = Patches()
        self.watch_closely: Callable[[], Patches] = Patches  # patches what only a close look needs
        self._closely: Patches | None = None
        self.lines = Lines()
        self.modules = Modules()
        self.parameters = Parameters()
        self.optimizers: Numbers[torch.optim.Optimizer] = Numbers()
        self.optimizer_names: dict[int, str] = {}
        self.schedulers: Numbers[Any] = Numbers()
        self.scalers: Numbers[Any] = Numbers()
        self.loaders: Numbers[Any] = Numbers()
        # By key of a node that a gradient scaler made: the scaler's number, or ~number if it is disabled.
        self.scaled: dict[int, int] = {}
        self.max_steps = max_steps
        self.on_stop: Callable[[int], None] = lambda times: None
        self.stop_by: type[StopRun] = StopRun
        self.raised = 0  # times StopRun was raised
        self.steps = 0
        self.backwards = 0
        self.derivatives = 0  # calls of autograd.grad
        self.looking = False
        self.resting = False  # a loop without an optimizer has been looked at long enough
        self.active = False
        self.seconds = 0.0  # spent watching
        self._began = self.clock
        self._busy = 0.0  # the same in processor time, so that a busy machine doesn't shorten the close look
        # When this was last measured: the time, the seconds spent watching until then, and the processor time.
        self._measured = time.perf_counter(), 0.0, time.process_time()
        # Does the watcher's work in a block: one thread at a time, unwatched, on a clock of its own. An error in
        # the block is gradgate's own: it does not reach the script, and the run goes on.
        self.working: Callable[[], Work] = functools.partial(Work, self)
        self.thread = _Thread()
        self.in_backward = 0  # backward passes that run, in any thread; each device has a thread of its own
        self._written: tuple[tuple[Any, ...], set[int]] | None = None
        self._next_block = _FIRST_STEPS
        self._second_looks = 0
        self._look_until = 0

    @property
    def quiet(self) -> int:
        """Whether this thread runs a library's code or gradgate's, whose writes and clearing are ignored."""
        return self.thread.quiet + watching.depth

    def add(self, event: Event) -> None:
        """Record an event."""
        if self._written is not None:
            self.flush()
        self.events.add(event)

    def wrote(self, target: Any, number: int, **facts: Any) -> None:
        """Record a write to one parameter. A loop's writes to several become one event."""
        key = (target, tuple(sorted(facts.items(), key=lambda item: item[0])))
        if self._written is not None and self._written[0] == key and number not in self._written[1]:
            self._written[1].add(number)
            return
        self.flush()
        self._written = (key, {number})

    def flush(self) -> None:
        """Record the writes that were gathered."""
        if self._written is not None:
            (target, facts), numbers = self._written
            self._written = None
            self.events.add(Written(target=target, parameters=self.parameters.same(numbers), **dict(facts)))

    def failed(self, failure: BaseException) -> bool:
        """Note an error in the watcher's own work, for the report. Return whether to keep it from the script."""
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
        """Record an activity that ends now. It began at clock time ``start``, after ``at`` events."""
        if len(self.spans) < _MOST_SPANS:
            self.spans.append((doing, start, time.perf_counter() - self.seconds, at))

    def stepped(self) -> None:
        """Count a step and decide whether to look closely at the next."""
        self.steps += 1
        if len(self.parameters.records) > _MOST_PARAMETERS:
            self.left_off = (
                f"The run has made more than {_MOST_PARAMETERS:,} parameters by step {self.steps}: what came after "
                "was not looked at."
            )
            self.active = False
            self._look(False)
            return
        self.thread.last_key = self.thread.newest_key
        if self.looking:
            self._measure()
        if self.steps < _FIRST_STEPS:
            # Seconds, or a third of a short run.
            patience = min(_SLOW_SECONDS, _PATIENT_SECONDS + _PATIENT_SHARE * (self.clock - self._began))
            if self.steps < _LEAST_STEPS or self._busy <= patience:
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
        # On a busy machine the process waits for a CPU. It also waits for the device, but then so does the watcher.
        self._busy += watching * min(max(busy / wall, _LEAST_BUSY), 1.0)

    def rests(self) -> bool:
        """Return whether a loop without an optimizer is no longer recorded.

        Only a close look sees such a loop's updates. The log must not show half of a window.
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
        """Record again, because the script made an optimizer or stepped one."""
        if self.resting:
            self.resting = False
            self._look(True)

    def look_again(self) -> None:
        """Look closely at the next steps, because the script made a model or optimizer in the middle of the run."""
        if self._second_looks < _MOST_SECOND_LOOKS and self._look_until != self.steps + _BLOCK:
            self._second_looks += 1
            self._look_until = self.steps + _BLOCK
            self._look(True)

    def begin(self) -> None:
        """Record from now on, closely at first."""
        self.active = True
        self._look(True)
        self.patches.on_undo(lambda: self._look(False))

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
        """Raise StopRun after the requested number of steps.

        In a loop without an optimizer, each backward call counts as a step.
        """
        if self.max_steps is None:
            return
        steps = self.steps if len(self.optimizers) else self.backwards + self.derivatives
        if steps < self.max_steps or not (self.active or self.left_off):
            return
        self.raised += 1
        self.on_stop(self.raised)
        raise self.stop_by
