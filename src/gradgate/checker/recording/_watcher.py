"""Watch a run: start, stop, and give the log."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from gradgate.call_sites import call_mine
from gradgate.checker.recording import _warnings
from gradgate.checker.recording._backward import Backwards
from gradgate.checker.recording._clearing import Clearing
from gradgate.checker.recording._cuts import Cuts
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._modes import Modes
from gradgate.checker.recording._names import Names
from gradgate.checker.recording._optimizers import Optimizers
from gradgate.checker.recording._parameter_creation import Births
from gradgate.checker.recording._ranks import Ranks
from gradgate.checker.recording._recorder import Recorder, StopRun, renew_lock
from gradgate.checker.recording._retained_graphs import Kept
from gradgate.checker.recording._schedules import Loaders, Scalers, Schedulers
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._unreached import Suspects
from gradgate.checker.recording._writes import Writes
from gradgate.events import Ended, Event, Log, Parameter, listeners
from gradgate.torch_compat import anything_compiled, unseen


class Watcher:
    """Makes events from an unmodified script, from :meth:`start` to :meth:`stop`.

    Nothing that the script computes is changed, and nothing it makes is kept alive. torch's classes are given back
    as they were, also where several watchers overlap.

    Args:
        script: the file that is watched, for the log.
        max_steps: optimizer steps after which :class:`StopRun` is raised out of the script.
        strict: let a failure of the watcher itself through, for tests. Else it is noted in the log.
    """

    def __init__(self, script: str = "", max_steps: int | None = None, *, strict: bool = False) -> None:
        self._script = script
        self._recorder = recorder = Recorder(max_steps, strict=strict)
        self._gradients = Gradients(recorder)
        self._kept = Kept(recorder)
        self._names = Names(recorder)
        optimizers = Optimizers(recorder)
        self._steps = Steps(recorder, self._gradients, optimizers)
        self._backwards = Backwards(recorder, self._gradients, self._kept)
        cuts = Cuts(recorder, self._backwards)
        self._suspects = Suspects(recorder, cuts)
        self._writes = Writes(recorder, self._gradients, self._steps, self._backwards, cuts)
        self._ranks = Ranks(recorder, self._gradients)
        self._parts: tuple[Any, ...] = (
            optimizers,
            self._steps,
            self._backwards,
            cuts,
            self._writes,
            Births(recorder, self._steps, cuts),
            self._ranks,
            Clearing(recorder, self._gradients),
            Schedulers(recorder),
            Scalers(recorder, self._gradients, self._steps),
            Loaders(recorder),
            Modes(recorder, cuts),
        )
        self._steps.after_step += [self._after_step]
        self._backwards.give_up = self._steps.give_up
        self._backwards.synchronises = self._ranks.synchronises
        self._backwards.without_steps = self._suspects.who_moves
        self._started: float | None = None
        self._process = -1
        self._seconds: float | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._recorder.steps

    @property
    def backwards(self) -> int:
        """Calls that derived so far: of backward, or of autograd.grad where there are no others."""
        return self._recorder.backwards or self._recorder.derivatives

    @property
    def told_to_stop(self) -> bool:
        """Whether the script has made the steps that were asked for, and was told to stop."""
        return self._recorder.raised > 0

    def stop_with(self, kind: type[StopRun], on_stop: Callable[[int], None]) -> None:
        """Set what is raised out of the script to stop it, and what is called before, with how often it was."""
        self._recorder.stop_by, self._recorder.on_stop = kind, on_stop

    def start(self) -> None:
        """Begin to watch. A second call does nothing."""
        if self._started is not None:
            return
        self._started = time.perf_counter()
        self._process = os.getpid()
        unseen()  # tried out before anything is watched
        if self._script:
            call_mine(str(Path(self._script).absolute()))
            call_mine(self._script)
        recorder = self._recorder
        for kept in (recorder.lines, recorder.modules):
            with recorder.working():
                kept.install(recorder.patches)
        for part in self._parts:
            with recorder.working():  # a part that this torch has no place for does not end the script
                part.install()
        _warnings.install(recorder.patches)
        recorder.patches.wrap(threading, "excepthook", _unless_stopped)
        recorder.patches.reach_imported()
        recorder.active = True
        recorder.lines.on()
        listeners.append(self._told)

    def stop(self, how: Literal["finished", "stopped", "failed"] = "finished") -> None:
        """Stop watching and give torch back as it was. A second call does nothing."""
        recorder = self._recorder
        if self._started is None or self._seconds is not None:
            return
        if os.getpid() != self._process:
            renew_lock()
        if not recorder.left_off:
            recorder.add(Ended((), how))
        recorder.active = False
        listeners[:] = [one for one in listeners if one != self._told]
        recorder.lines.off()
        self._suspects.let_go()
        self._steps.remove()
        recorder.patches.undo()
        with recorder.working():
            self._names.finish()
        self._seconds = time.perf_counter() - self._started

    def log(self) -> Log:
        """Return what was seen so far."""
        recorder = self._recorder
        recorder.flush()
        if recorder.active:
            with recorder.working():
                self._names.finish()
        started = self._started if self._started is not None else time.perf_counter()
        seconds = self._seconds if self._seconds is not None else time.perf_counter() - started
        names = recorder.optimizer_names
        not_judged = recorder.not_judged
        # Nothing shows itself of a step that is compiled.
        if not not_judged and len(self._steps.stepped) < len(recorder.optimizers) and anything_compiled():
            not_judged = (
                "The script compiles, and an optimizer made no step that could be seen. Where its step is "
                "compiled, check with TORCH_COMPILE_DISABLE=1."
            )
        return Log(
            self._script,
            {number: self._parameter(number) for number in recorder.parameters.sights},
            {number: names.get(number, "optimizer") for number in range(len(recorder.optimizers))},
            () if not_judged else recorder.journal.events(),
            recorder.steps,
            self.backwards,
            seconds,
            recorder.seconds,
            *self._ranks.place(),
            failures=tuple(recorder.failures),
            spans=tuple(recorder.spans),
            not_judged=not_judged or recorder.left_off,
            unseen=unseen(),
        )

    def _parameter(self, number: int) -> Parameter:
        sight = self._recorder.parameters.sights[number]
        return Parameter(
            number,
            sight.name,
            sight.root,
            sight.shape,
            sight.nbytes,
            sight.made,
            sight.made_at,
            sight.copied,
            sight.trainable,
            sight.registered,
            sight.looks,
            sight.zeros,
            sight.zeroed,
            sight.still,
            sight.began,
            tuple(sight.norms),
        )

    def _told(self, event: Event) -> None:
        recorder = self._recorder
        if recorder.active and not recorder.quiet:
            with recorder.working():
                recorder.add(dataclasses.replace(event, site=recorder.site()))

    def _after_step(self) -> None:
        recorder = self._recorder
        if recorder.looking:
            self._writes.note()
            self._kept.look()
            self._names.find()
        self._suspects.look()


def _unless_stopped(original: Any, raised: threading.ExceptHookArgs) -> None:
    """Show what ended a thread, as python does: but not what we have ended."""
    if not issubclass(raised.exc_type, StopRun):
        original(raised)
