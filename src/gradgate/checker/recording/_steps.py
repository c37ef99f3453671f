"""The steps of optimizers: what each is given, and what it moves."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._optimizers import Optimizers, number_of
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import is_sharded
from gradgate.checker.recording._samples import drifts, moved_by, same, sample, sizes, sum_of
from gradgate.checker.recording._tracing import tracing
from gradgate.events import Ids, Stepped

_NORMS = 8
_MOST_MEASURED = 2_000  # parameters whose norms are kept at each step that is looked at
_STEP_FILE = inspect.getfile(Optimizer)


class Steps:
    """Watches steps through torch.optim's own global hooks; a replaced ``step`` would break schedulers."""

    def __init__(self, recorder: Recorder, gradients: Gradients, optimizers: Optimizers) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._optimizers = optimizers
        self._open: list[dict[str, Any]] = []  # steps that have begun, an optimizer within an optimizer last
        self.before: dict[int, Tensor] = {}  # sampled values before the last step
        self._after: dict[int, Tensor] = {}  # and after it
        self._sums: dict[int, set[float]] = {}  # of the values that the steps have left
        self.masked: dict[int, Tensor] = {}  # rows of a parameter whose gradient a hook has set to zero
        self.scaler: int | None = None  # that is stepping
        self.after_step: list[Callable[[], None]] = []
        self._handles: list[Any] = []
        self.stepped: set[int] = set()  # optimizers that have

    def install(self) -> None:
        """Register the hooks."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def was_left(self, number: int, values: Tensor) -> bool:
        """Say whether an earlier step has left these values."""
        return sum_of(values) in self._sums.get(number, ())

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def give_up(self) -> None:
        """Forget steps that began and never ended, because they raised: their call is not running any more."""
        mine = threading.get_ident()
        running: set[int] | None = None
        for record in [one for one in self._open if one["thread"] == mine]:
            running = _running() if running is None else running
            if record["frame"] not in running:
                self._close(record)

    def _last_open(self) -> dict[str, Any] | None:
        """Return the step that this thread is in."""
        mine = threading.get_ident()
        return next((record for record in reversed(self._open) if record["thread"] == mine), None)

    def writes_itself(self) -> bool:
        """Say whether an optimizer that was given a closure is writing, and not the closure that it called."""
        record = self._last_open()
        if record is None or record["code"] is None:
            return False
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not record["code"]:
            frame = frame.f_back
        return frame is None

    def _close(self, record: dict[str, Any]) -> None:
        self._open = [one for one in self._open if one is not record]
        self._recorder.end_step(closure=record["closure"])

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.active or tracing():
            return
        recorder.stop_if_due()
        self.give_up()
        given = args[1] if len(args) > 1 else (kwargs or {}).get("closure")
        closure = given is not None
        # A step that raises leaves its record here for a while, which must keep nothing of the user's alive.
        record: dict[str, Any] = {"optimizer": weakref.ref(optimizer), "closure": closure}
        record["code"] = _code_of(given)
        record["frame"] = id(sys._getframe(1))
        record["backwards"] = recorder.backwards
        record["thread"] = threading.get_ident()
        with recorder.working():
            record["site"], record["at"] = recorder.site(), recorder.journal.count
            if recorder.optimizers.known(optimizer) is None:
                self._optimizers.meet(optimizer)
            self._gradients.compare()
            parameters = [
                (recorder.parameters.number(parameter), parameter)
                for group in optimizer.param_groups
                for parameter in group["params"]
            ]
            record["numbers"] = [number for number, _ in parameters]
            sharded = any(is_sharded(parameter) for _, parameter in parameters)
            looking = recorder.looking and not sharded
            if sharded:  # the graph may have other tensors than the optimizer, and a part says little
                recorder.not_judged = (
                    "Parameters lie in parts on several ranks: their steps are only counted."
                )
            if looking:
                record["values"] = values = {number: sample(parameter) for number, parameter in parameters}
                for number, one in values.items():
                    sight = recorder.parameters.sights[number]
                    if sight.began is None:
                        sight.began = sum_of(one)
                after = self._after
                record["changed"] = recorder.parameters.same(
                    number
                    for number, one in values.items()
                    if number in after and not same(after[number], one)
                )
            else:
                self._after.clear()
            if looking:
                record["rows"] = {
                    number: parameter.detach().clone()
                    for number, parameter in parameters
                    if number in self.masked and parameter.dim() and parameter.numel() < 1 << 20
                }
            if not closure and not sharded:
                record.update(self._used(parameters))
            record["whole"] = not sharded
        self._open.append(record)
        record["start"] = recorder.clock
        recorder.begin_step(closure=closure)

    def _used(self, parameters: list[tuple[int, Tensor]]) -> dict[str, Any]:
        """Return what the step is given: which gradients there are, which are zero, which not finite."""
        recorder = self._recorder
        given = [
            (number, parameter)
            for number, parameter in parameters
            if parameter.is_leaf and parameter.grad is not None
        ]
        facts: dict[str, Any] = {
            "used": recorder.parameters.same(number for number, _ in given),
            "frozen": recorder.parameters.same(number for number, one in given if not one.requires_grad),
        }
        if recorder.looking:
            found = sizes([parameter.grad for _, parameter in given])
            pairs = [(number, size) for (number, _), (size, _) in zip(given, found, strict=True)]
            norms = {number: norm for (number, _), (_, norm) in zip(given, found, strict=True)}
            facts["norms"] = norms if len(norms) <= _MOST_MEASURED else {}
            for number, size in pairs:
                sight = recorder.parameters.sights[number]
                sight.looks += 1
                sight.zeros += size == 0
                if len(sight.norms) < _NORMS:
                    sight.norms.append(size)
            facts["zero"] = recorder.parameters.same(number for number, size in pairs if size == 0)
            facts["nonfinite"] = recorder.parameters.same(
                number for number, size in pairs if not size < float("inf")
            )
        return facts

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if tracing():
            return
        recorder = self._recorder
        if recorder.left_off:
            recorder.steps += 1
            recorder.stop_if_due()
        record = self._last_open()
        if record is None or record["optimizer"]() is not optimizer:
            return
        recorder.took("step", record["start"], record["at"])
        self._close(record)
        outer = self._last_open()
        if outer is not None:
            outer["handed_on"] = True
        if "handed_on" in record:
            return  # an optimizer that only hands on to another has not stepped itself
        with recorder.working():
            if record.get("whole"):
                self._record(optimizer, record)
        if "counted" not in record:  # looking at it failed: it is a step all the same
            recorder.stepped()
        if outer is None:
            recorder.stop_if_due()

    def _record(self, optimizer: Optimizer, record: dict[str, Any]) -> None:
        recorder = self._recorder
        known = recorder.parameters.numbers
        pairs = [(number, known.get(number)) for number in record["numbers"]]
        parameters = [(number, parameter) for number, parameter in pairs if parameter is not None]
        if record["closure"]:
            record.update(self._used(parameters))
        moved: Ids = frozenset()
        norms: tuple[tuple[int, float, float, float], ...] = ()
        if "values" in record:
            self.before = record["values"]
            now = {number: sample(parameter) for number, parameter in parameters}
            moved = recorder.parameters.same(
                number for number, old in self.before.items() if not same(old, now[number])
            )
            for number in moved:
                recorder.parameters.sights[number].still = False
            measured = record.get("norms", {})
            norms = tuple(
                (number, measured[number], *moved_by(self.before[number], now[number], parameter.numel()))
                for number, parameter in parameters
                if number in measured
            )
            self._after.update(now)
            for number, values in now.items():
                self._sums.setdefault(number, set()).add(sum_of(values))
        rows = frozenset(
            number
            for number, parameter in parameters
            if number in record.get("rows", {})
            and drifts(record["rows"][number], parameter, self.masked[number])
        )
        recorder.stepped()
        record["counted"] = True
        self.stepped.add(recorder.optimizers.number(optimizer))
        recorder.add(
            Stepped(
                record["site"],
                recorder.optimizers.number(optimizer),
                record["used"],
                zero=record.get("zero", frozenset()),
                frozen=record["frozen"],
                moved=moved,
                changed=record.get("changed", frozenset()),
                nonfinite=record.get("nonfinite", frozenset()),
                skipped_rows=recorder.parameters.same(rows),
                lr=tuple(number_of(group.get("lr")) or 0.0 for group in optimizer.param_groups),
                # A trainer may hand over a closure that does nothing.
                closure=record["closure"] and recorder.backwards > record["backwards"],
                scaler=self.scaler,
                seen="values" in record,
                norms=norms,
            )
        )
        for act in self.after_step:
            act()


def _code_of(function: Any) -> types.CodeType | None:
    """Return what runs when something is called, as far as that is python."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", None)  # noqa: B004  (its code is what is wanted)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _running() -> set[int]:
    """Return the calls of ``step`` that this thread is in, by their frames."""
    found = set()
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _STEP_FILE:
            found.add(id(frame))
        frame = frame.f_back
    return found
