"""What all watching parts share: the journal, the numbers of things, and when to look closely."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from gradgate.call_sites import here
from gradgate.checker.recording._event_buffer import Journal
from gradgate.checker.recording._modules import Modules
from gradgate.checker.recording._node_lines import Lines
from gradgate.checker.recording._patches import Patches
from gradgate.checker.recording._registry import Numbers, Parameters
from gradgate.events import Doing, Event, Ids, Site, Span, Written
from gradgate.torch_compat import as_torch_itself

_FIRST_STEPS = 60  # steps that are looked at closely
_LEAST_STEPS = 12  # also where looking is slow
_SLOW_SECONDS = 2.0
_FAILURES = 4  # of the watcher's own that are told
_EVERY = 8  # later on, looks are taken in blocks of this many steps, ever farther apart
_MOST_PARAMETERS = 50_000  # that are kept account of: a run may make models for ever
_MOST_SPANS = 6_000
_AGAIN = 16  # times that a look is taken because something new came up


class StopRun(SystemExit):
    """Raised out of the watched script when it has made as many steps as were asked for."""


class StopTask(StopRun, Exception):  # noqa: N818
    """The same where a process does tasks for another one, and hands on their errors; it must not die of one."""


class _AtWork(threading.local):
    """Whether a watcher is at work in this thread: what it does is watched by none."""

    depth = 0


class _Turn:
    """Whose turn it is. One lock for all watchers: two that wait for each other would wait for ever."""

    lock = threading.RLock()


_at_work = _AtWork()


def renew_lock() -> None:
    """Forget who holds the lock: after a fork, that thread may not exist."""
    _Turn.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)


class _OfThread(threading.local):
    """What is told apart by thread: autograd numbers the nodes of each from 0."""

    quiet = 0
    closures = 0
    last_key = -1
    newest_key = -1


class Recorder:
    """State of one watching. Parts record into it, from wherever torch calls them."""

    def __init__(self, max_steps: int | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        self.failures: list[str] = []
        self.journal = Journal()
        self.spans: list[Span] = []  # of the first part of the run
        self.left_off = ""  # why no more is looked at, if so
        self.not_judged = ""  # why what was seen does not tell what happened, if so
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
        ] = {}  # key of a node that a gradient scaler made: the scaler, ~scaler if off
        self.max_steps = max_steps
        self.on_stop: Callable[[int], None] = lambda times: None  # called before the script is stopped
        self.stop_by: type[StopRun] = StopRun
        self.steps = 0
        self.backwards = 0
        self.looking = True
        self.active = False
        self.seconds = 0.0  # spent in here
        self._busy = 0.0  # of those, really at work: a busy machine does not shorten the close look
        self._own = _OfThread()
        self._going_back = 0  # backward calls that are running
        self.raised = 0  # times that the script was told to stop
        self.derivatives = 0  # calls of autograd.grad
        self._written: tuple[tuple[Any, ...], set[int]] | None = None
        self._next_block = _FIRST_STEPS
        self._again = 0
        self._until = 0  # steps before this one are looked at

    @property
    def quiet(self) -> int:
        """Depth of code whose writes and clearings are its own business, in this thread: a library's, or ours."""
        return self._own.quiet + _at_work.depth

    @property
    def closures(self) -> int:
        """Steps with a closure that are running in this thread."""
        return self._own.closures

    @property
    def last_key(self) -> int:
        """The newest graph node that was seen when the last step was made. Each thread numbers its own."""
        return self._own.last_key

    @property
    def newest_key(self) -> int:
        """The newest graph node that was seen in this thread."""
        return self._own.newest_key

    @newest_key.setter
    def newest_key(self, key: int) -> None:
        self._own.newest_key = key

    def add(self, event: Event) -> None:
        """Record an event."""
        self.flush()
        self.journal.add(event)

    def wrote(self, target: Any, number: int, **facts: Any) -> None:
        """Record a write to one parameter; writes of one loop over several become one event."""
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
            self.journal.add(Written(target=target, parameters=self.parameters.same(numbers), **dict(facts)))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the time that is spent watching, one thread at a time; what is done within is not watched.

        A failure in here is ours and must not become the script's: it is noted, and the run goes on.
        """
        start, busy = time.perf_counter(), time.thread_time()
        with _Turn.lock, as_torch_itself():
            _at_work.depth += 1
            try:
                yield
            except Exception:
                if self.strict:
                    raise
                if len(self.failures) < _FAILURES:
                    self.failures.append(traceback.format_exc(limit=-3))
            finally:
                _at_work.depth -= 1
                self.seconds += time.perf_counter() - start
                self._busy += time.thread_time() - busy

    @property
    def clock(self) -> float:
        """Seconds on a clock that stands still while watching works."""
        return time.perf_counter() - self.seconds

    def timed(self, doing: Doing) -> AbstractContextManager[None]:
        """Note how long the script's own work within takes, in the first part of the run."""
        return self._timed(doing) if len(self.spans) < _MOST_SPANS else nullcontext()

    @contextmanager
    def _timed(self, doing: Doing) -> Iterator[None]:
        start, at = self.clock, self.journal.count
        try:
            yield
        finally:
            self.took(doing, start, at)

    def took(self, doing: Doing, start: float, at: int) -> None:
        """Note how long something took that began at ``start`` of the clock."""
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(Span(doing, start, self.clock, at))

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Say that autograd runs, in this thread or in one of its own."""
        with _Turn.lock:
            self._going_back += 1
        try:
            yield
        finally:
            with _Turn.lock:
                self._going_back -= 1

    @property
    def goes_back(self) -> bool:
        """Say whether autograd runs in some thread."""
        return self._going_back > 0

    @contextmanager
    def library(self) -> Iterator[None]:
        """Leave out what torch itself does inside: an optimizer's own writes are no writes by hand."""
        self._own.quiet += 1
        try:
            yield
        finally:
            self._own.quiet -= 1

    def begin_step(self, *, closure: bool) -> None:
        """Enter an optimizer's step: what a plain one writes is its own business, a closure is the user's."""
        if closure:
            self._own.closures += 1
        else:
            self._own.quiet += 1

    def end_step(self, *, closure: bool) -> None:
        """Leave it again, in the same thread."""
        if closure:
            self._own.closures -= 1
        else:
            self._own.quiet -= 1

    def site(self) -> Site:
        """Return where the user's code is."""
        return here()

    def stepped(self) -> None:
        """Count a step, decide whether to go on looking, and stop the run where it was to be stopped."""
        self.steps += 1
        if len(self.parameters.sights) > _MOST_PARAMETERS:
            self.leave_off()
            return
        self._own.last_key = self._own.newest_key
        slow = self._busy > _SLOW_SECONDS and self.steps >= _LEAST_STEPS
        if self.steps < _FIRST_STEPS and not slow:
            looking = True
        else:
            since = self.steps - self._next_block
            if since >= _EVERY:
                self._next_block = 2 * self.steps
            looking = 0 <= since < _EVERY or self.steps < self._until
        if looking != self.looking:
            self.looking = looking
            if looking:
                self.lines.on()
            else:
                self.lines.off()

    def leave_off(self) -> None:
        """Count steps from now on, and nothing else: memory has to stay bounded."""
        self.left_off = (
            f"The run has made more than {_MOST_PARAMETERS:,} parameters by step {self.steps}: what came after was "
            "not looked at."
        )
        self.looking = self.active = False
        self.lines.off()

    def look_again(self) -> None:
        """Look closely for a few steps from now on: a model or an optimizer was made in the middle of the run."""
        if self._again < _AGAIN and self._until != self.steps + _EVERY:
            self._again += 1
            self._until = self.steps + _EVERY
            if not self.looking:
                self.looking = True
                self.lines.on()

    def stop_if_due(self) -> None:
        """Raise StopRun where the steps that were asked for are made.

        A loop without an optimizer makes its steps by hand: there each call that derives counts as one.
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
