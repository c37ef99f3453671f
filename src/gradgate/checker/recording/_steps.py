"""Record optimizer steps: the gradients that each step uses, and the values that it changes."""

from __future__ import annotations

import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradgate.call_sites import outwards
from gradgate.checker.recording._creation import Creation, parameters_of
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._measures import (
    Rounding,
    moved_by,
    same,
    sample,
    size_and_norm,
    sum_of,
    update_of,
)
from gradgate.checker.recording._patches import tracing
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import is_sharded
from gradgate.checker.recording._user_objects import code_of, number_of
from gradgate.events import Ids, Site, Stepped

_MOST_MEASURED = 2_000  # an optimizer with more parameters gets no norms recorded
_STEP_FILE = inspect.getfile(Optimizer)

Pairs = list[tuple[int, Tensor]]


@dataclass(eq=False)
class _OpenStep:
    """A step that has begun. The record outlives a step that raises, so it holds the user's objects only weakly."""

    optimizer: weakref.ref[Optimizer]
    closure: bool
    code: types.CodeType | None  # the closure's code
    frame: int  # id of the frame that runs step()
    thread: int
    backwards: int
    start: float = 0.0
    site: Site = ()
    at: int = 0  # number of events before the step
    numbers: Sequence[int] = ()
    whole: bool = False  # whether no parameter is sharded
    before: dict[int, Tensor] | None = None  # samples of the values before the step, under a close look
    norms: dict[int, float] = field(default_factory=dict)  # gradient norms, under a close look
    facts: dict[str, Any] = field(default_factory=dict)  # fields of the Stepped event
    delegated: bool = False  # whether another optimizer stepped inside this step
    counted: bool = False


class Steps:
    """Watches steps through torch's global step hooks, because schedulers would notice a replaced ``step``."""

    def __init__(
        self,
        recorder: Recorder,
        gradients: Gradients,
        creation: Creation,
        after_step: Callable[[], None],
    ) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._creation = creation
        self._recorded = after_step
        self._open: list[_OpenStep] = []  # the innermost step is last
        self._after: dict[int, Tensor] = {}  # sampled values after the last step
        self._rounding: dict[int, Rounding] = {}  # by parameter number
        self._sums: dict[int, set[float]] = {}  # parameter number -> sum_of its values after each step
        self.scaler: int | None = None  # the gradient scaler that is stepping
        self.stepped: set[int] = set()
        # optimizer number -> the last step without a close look, reused while the facts stay the same
        self._repeated: dict[int, tuple[Any, Stepped]] = {}

    def install(self) -> None:
        """Register the hooks."""
        patches = self._recorder.patches
        patches.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after_step).remove)

    def was_left(self, number: int, values: Tensor) -> bool:
        """Return whether the parameter had these values after an earlier step."""
        return sum_of(values) in self._sums.get(number, ())

    def give_up(self) -> None:
        """Forget the steps that raised, whose frames no longer run."""
        if not self._open:
            return
        mine = [step for step in self._open if step.thread == threading.get_ident()]
        frames = outwards(sys._getframe()) if mine else ()
        running = {id(frame) for frame in frames if frame.f_code.co_filename == _STEP_FILE}
        for step in mine:
            if step.frame not in running:
                self._close(step)

    def writes_itself(self) -> bool:
        """Return whether this thread is in a step with a closure, but not in the closure."""
        step = self._last_open()
        return (
            step is not None
            and step.code is not None
            and all(frame.f_code is not step.code for frame in outwards(sys._getframe()))
        )

    def _last_open(self) -> _OpenStep | None:
        """Return the innermost step that this thread runs."""
        mine = threading.get_ident()
        return next((step for step in reversed(self._open) if step.thread == mine), None)

    def _close(self, step: _OpenStep) -> None:
        self._open.remove(step)
        self._enter(step, -1)

    def _enter(self, step: _OpenStep, by: int) -> None:
        """Begin (1) or end (-1) a step. Ignore its writes, except those of the user's closure."""
        thread = self._recorder.thread
        if step.closure:
            thread.closures += by
        else:
            thread.quiet += by

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.active or tracing():
            return
        recorder.stop_if_due()
        self.give_up()
        closure = args[1] if len(args) > 1 else (kwargs or {}).get("closure")
        step = _OpenStep(
            weakref.ref(optimizer),
            closure is not None,
            None if closure is None else code_of(closure),
            id(sys._getframe(1)),
            threading.get_ident(),
            recorder.backwards,
        )
        with recorder.working() as work:
            step.start, step.site = work.clock, recorder.site()
            number = recorder.optimizers.known(optimizer)
            if number is None:
                number = self._creation.meet(optimizer)
            self._gradients.compare()
            tensors = parameters_of(optimizer)
            step.numbers = recorder.parameters.listed(tensors)
            known_as_whole = number in self.stepped and not recorder.looking
            step.whole = known_as_whole or not any(map(is_sharded, tensors))
            if not step.whole:
                recorder.not_judged = "Parameters are sharded over ranks, so their steps are only counted."
            pairs = list(zip(step.numbers, tensors, strict=True))
            step.facts |= self._creation.begins(number, pairs if step.whole else ())
            if step.whole and recorder.looking:
                self._look(step, pairs)
            else:
                self._after.clear()
            if step.whole and not step.closure:
                self._read_gradients(step, pairs)
            step.at = recorder.events.count
        self._open.append(step)
        self._enter(step, 1)

    def _look(self, step: _OpenStep, pairs: Pairs) -> None:
        """Sample the parameters' values."""
        parameters, after = self._recorder.parameters, self._after
        samples = {number: sample(parameter) for number, parameter in pairs}
        for number, values in samples.items():
            record = parameters.records[number]
            record.began = sum_of(values) if record.began is None else record.began
        step.facts["changed"] = parameters.same(
            number
            for number, values in samples.items()
            if number in after and not same(after[number], values)
        )
        step.before = samples

    def _read_gradients(self, step: _OpenStep, pairs: Pairs) -> None:
        """Note which parameters have a gradient, and which gradients are zero, infinite or NaN."""
        recorder, ids = self._recorder, self._recorder.parameters.same
        used = step.facts["used"] = self._gradients.held(frozenset(step.numbers))
        step.facts["frozen"] = ids([n for n, each in pairs if not each.requires_grad and n in used])
        if not recorder.looking:
            return
        found = {number: size_and_norm(each.grad) for number, each in pairs if number in used}
        if len(found) <= _MOST_MEASURED:
            step.norms = {number: norm for number, (_, norm) in found.items()}
        for number, (largest, _) in found.items():
            record = recorder.parameters.records[number]
            record.looks += 1
            record.zeros += largest == 0
        step.facts["zero"] = ids(number for number, (largest, _) in found.items() if largest == 0)
        step.facts["nonfinite"] = ids(n for n, (largest, _) in found.items() if not largest < float("inf"))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if tracing():
            return
        recorder = self._recorder
        if recorder.left_off:
            recorder.steps += 1
            recorder.stop_if_due()
        step = self._last_open()
        if step is None or step.optimizer() is not optimizer:
            return
        recorder.took("step", step.start, step.at)
        self._close(step)
        outer = self._last_open()
        if outer is not None:
            outer.delegated = True
        if step.delegated:
            return  # only the inner optimizer's step counts
        with recorder.working():
            if step.whole:
                self._record(optimizer, step)
        if not step.counted:  # parameters are sharded, or the watcher failed
            recorder.stepped()
        if outer is None:
            recorder.stop_if_due()

    def _record(self, optimizer: Optimizer, step: _OpenStep) -> None:
        recorder, facts, looked = self._recorder, step.facts, step.before is not None
        number = recorder.optimizers.number(optimizer)
        if step.closure or looked:
            pairs = recorder.parameters.numbers.alive(step.numbers)
            if step.closure:
                self._gradients.compare()
                self._read_gradients(step, pairs)
            if step.before is not None:
                facts |= self._changes(step.before, step.norms, pairs)
                facts["rounded"] = self._rounded(step, optimizer)
        facts["lr"] = tuple([number_of(group.get("lr")) or 0.0 for group in optimizer.param_groups])
        # A trainer may pass a closure that never calls backward.
        facts["closure"] = step.closure and recorder.backwards > step.backwards
        facts["scaler"] = self.scaler
        recorder.stepped()
        step.counted = True
        self.stepped.add(number)
        self._creation.ends(number)
        last = self._repeated.get(number)
        if not looked and last is not None and last[0] == (step.site, facts):
            recorder.add(last[1])
        else:
            event = Stepped(step.site, number, **facts, seen=looked)
            self._repeated[number] = (step.site, facts), event
            recorder.add(event)
        self._recorded()

    def _changes(self, then: dict[int, Tensor], norms: dict[int, float], pairs: Pairs) -> dict[str, Any]:
        """Compare the values before and after a step. Return fields of the Stepped event."""
        parameters = self._recorder.parameters
        ids = parameters.same
        now = {number: sample(parameter) for number, parameter in pairs}
        moved = ids(number for number in then if not same(then[number], now[number]))
        for number in moved:
            parameters.records[number].still = False
        self._after.update(now)
        for number, values in now.items():
            parameters.records[number].ended = total = sum_of(values)
            self._sums.setdefault(number, set()).add(total)
        given = [pair for pair in pairs if pair[0] in norms]
        changes = tuple((n, norms[n], *moved_by(then[n], now[n], each.numel())) for n, each in given)
        return {"moved": moved, "norms": changes}

    def _rounded(self, step: _OpenStep, optimizer: Optimizer) -> Ids:
        """Return the 16-bit parameters most of whose updates are rounded away.

        Only torch's own optimizers are followed: others may round stochastically, or keep the rounding error.
        """
        found, parameters = [], self._recorder.parameters
        groups = optimizer.param_groups if type(optimizer).__module__.startswith("torch.optim") else ()
        for group, each in [(owner, each) for owner in groups for each in owner["params"]]:
            number, gradient = parameters.numbers.known(each), each.grad
            if (
                number in step.norms
                and each.dtype in (torch.bfloat16, torch.float16)
                and gradient is not None
                and not gradient.is_sparse
            ):
                before = (step.before or {})[number]
                rounding = self._rounding.setdefault(number, Rounding(before))
                update = update_of(optimizer, group, each)
                if rounding.follow(before, self._after[number], gradient, update):
                    parameters.records[number].dtype = str(each.dtype).removeprefix("torch.")
                    found.append(number)
        return parameters.same(found)
