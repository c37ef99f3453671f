"""What all parts of the watcher share: the events, the numbers of objects, and when to look closely."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gradgate.call_sites import here
from gradgate.checker.recording._event_buffer import EventBuffer
from gradgate.checker.recording._modules import Modules
from gradgate.checker.recording._node_lines import Lines
from gradgate.checker.recording._patches import Patches
from gradgate.checker.recording._registry import Numbers, Parameters
from gradgate.events import Doing, Event, Ids, Site, Span, Written
from gradgate.torch_compat import as_torch_itself

_FIRST_STEPS = 60  # steps that are looked at closely
_LEAST_STEPS = 12  # the same, if looking is slow
_SLOW_SECONDS = 2.0
_BLOCK = 8  # after that, blocks of this many steps are looked at, at growing distances
_MOST_FAILURES = 4  # of the watcher's own that are kept
_MOST_PARAMETERS = 50_000  # a run may create models forever
_MOST_SPANS = 6_000
_MOST_SECOND_LOOKS = 16  # times that something new makes the watcher look closely again


class StopRun(SystemExit):
    """Raised out of the watched script after the number of steps that were asked for."""


class StopTask(StopRun, Exception):  # noqa: N818
    """The same for a worker that passes the errors of its tasks on. The worker must survive it."""


class _Watching(threading.local):
    """How many watchers are at work in this thread. None of them watches what they do."""

    depth = 0


class _Turn:
    """One lock for all watchers: with one lock each, two could deadlock."""

    lock = threading.RLock()


_watching = _Watching()


def renew_lock() -> None:
    """Make a new lock in a forked process, where the thread that held the old one may not exist."""
    _Turn.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)


class _Thread(threading.local):
    """What is different in each thread: autograd numbers the nodes of each from 0."""

    quiet = 0
    closures = 0
    last_key = -1
    newest_key = -1


class Recorder:
    """State of one watcher. Its parts record into it, from wherever torch calls them."""

    def __init__(self, max_steps: int | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        self.failures: list[str] = []
        self.events = EventBuffer()
        self.spans: list[Span] = []
        self.left_off = ""  # why the watcher stopped looking, if it did
        self.not_judged = ""  # why the events don't tell what happened, if so
        self.patches = Patches()
        self.lines = Lines()
        self.modules = Modules()
        self.parameters = Parameters()
        self.optimizers: Numbers[torch.optim.Optimizer] = Numbers()
        self.optimizer_names: dict[int, str] = {}
        self.schedulers: Numbers[Any] = Numbers()
        self.scalers: Numbers[Any] = Numbers()
        self.loaders: Numbers[Any] = Numbers()
        self.scaled: dict[
            int, int
        ] = {}  # key of a node that a gradient scaler made: its number, ~number if disabled
        self.max_steps = max_steps
        self.on_stop: Callable[[int], None] = lambda times: None
        self.stop_by: type[StopRun] = StopRun
        self.raised = 0  # times the script was told to stop
        self.steps = 0
        self.backwards = 0
        self.derivatives = 0  # calls of autograd.grad
        self.looking = True
        self.active = False
        self.seconds = 0.0  # spent watching
        self._busy = 0.0  # the same in processor time: on a busy machine the close look isn't shorter
        self._thread = _Thread()
        self._in_backward = 0
        self._written: tuple[tuple[Any, ...], set[int]] | None = None
        self._next_block = _FIRST_STEPS
        self._second_looks = 0
        self._look_until = 0

    @property
    def quiet(self) -> int:
        """Whether this thread runs a library's code or ours, whose writes and clearing don't matter."""
        return self._thread.quiet + _watching.depth

    @property
    def in_library(self) -> bool:
        """Whether torch itself is at work in this thread, also while the watcher works."""
        return self._thread.quiet > 0

    @property
    def closures(self) -> int:
        """Number of steps with a closure that are running in this thread."""
        return self._thread.closures

    @property
    def last_key(self) -> int:
        """The newest graph node at the last step. Each thread has its own numbers."""
        return self._thread.last_key

    @property
    def newest_key(self) -> int:
        """The newest graph node seen in this thread."""
        return self._thread.newest_key

    @newest_key.setter
    def newest_key(self, key: int) -> None:
        self._thread.newest_key = key

    def add(self, event: Event) -> None:
        """Record an event."""
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

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do the watcher's work: one thread at a time, unwatched, on a clock of its own.

        An error in here is ours and must not become the script's: it is kept for the report, and the run goes on.
        """
        start, busy = time.perf_counter(), time.thread_time()
        with _Turn.lock, as_torch_itself():
            _watching.depth += 1
            try:
                yield
            except Exception:
                if self.strict:
                    raise
                if len(self.failures) < _MOST_FAILURES:
                    self.failures.append(traceback.format_exc(limit=-3))
            finally:
                _watching.depth -= 1
                self.seconds += time.perf_counter() - start
                self._busy += time.thread_time() - busy

    @property
    def clock(self) -> float:
        """Seconds on a clock that stands still while the watcher works."""
        return time.perf_counter() - self.seconds

    def took(self, doing: Doing, start: float, at: int) -> None:
        """Record how long something took that began at ``start``, after ``at`` events."""
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(Span(doing, start, self.clock, at))

    @contextmanager
    def library(self, *_: Any, **__: Any) -> Iterator[None]:
        """Ignore what torch itself does inside: an optimizer's own writes are not writes by hand."""
        self._thread.quiet += 1
        try:
            yield
        finally:
            self._thread.quiet -= 1

    @contextmanager
    def backward(self, *_: Any, **__: Any) -> Iterator[None]:
        """Run a backward pass, in this thread or in one of autograd's."""
        with _Turn.lock:
            self._in_backward += 1
        try:
            with self.lines.paused():
                yield
        finally:
            with _Turn.lock:
                self._in_backward -= 1

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is running, in any thread: on another device it runs in one of its own."""
        return self._in_backward > 0

    def begin_step(self, *, closure: bool) -> None:
        """Enter an optimizer's step: ignore what it writes, except in a closure, which is the user's."""
        if closure:
            self._thread.closures += 1
        else:
            self._thread.quiet += 1

    def end_step(self, *, closure: bool) -> None:
        """Leave it, in the same thread."""
        if closure:
            self._thread.closures -= 1
        else:
            self._thread.quiet -= 1

    def site(self) -> Site:
        """Return where the user's code is."""
        return here()

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
        self._thread.last_key = self._thread.newest_key
        slow = self._busy > _SLOW_SECONDS and self.steps >= _LEAST_STEPS
        if self.steps < _FIRST_STEPS and not slow:
            self._look(True)
            return
        since = self.steps - self._next_block
        if since >= _BLOCK:
            self._next_block = 2 * self.steps
        self._look(0 <= since < _BLOCK or self.steps < self._look_until)

    def look_again(self) -> None:
        """Look closely at the next steps: a model or an optimizer was made in the middle of the run."""
        if self._second_looks < _MOST_SECOND_LOOKS and self._look_until != self.steps + _BLOCK:
            self._second_looks += 1
            self._look_until = self.steps + _BLOCK
            self._look(True)

    def _look(self, closely: bool) -> None:
        if closely != self.looking:
            self.looking = closely
            if closely:
                self.lines.on()
            else:
                self.lines.off()

    def stop_if_due(self) -> None:
        """Raise StopRun after the steps that were asked for.

        In a loop without an optimizer, each backward call counts as a step.
        """
        steps = self.steps if len(self.optimizers) else self.backwards + self.derivatives
        if self.max_steps is None or steps < self.max_steps or not (self.active or self.left_off):
            return
        self.raised += 1
        self.on_stop(self.raised)
        raise self.stop_by

    def ids(self, tensors: Any) -> Ids:
        """Return the numbers of several parameters."""
        return self.parameters.ids(tensors)
