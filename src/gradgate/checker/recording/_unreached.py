"""Examine parameters that get no gradient, and frozen batch norms that still change."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.checker.recording._forward import Cuts, decorated
from gradgate.checker.recording._measures import same, sample, statistics_drift
from gradgate.checker.recording._patches import Patches, tracing
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import Numbers, is_sharded
from gradgate.checker.recording._user_objects import (
    children_of,
    is_a,
    own_buffers,
    own_parameters,
    tensors_in,
)
from gradgate.events import Ran, StatisticsMoved
from gradgate.torch_compat import anything_compiled, tensor_version

_RUNS = 4  # forward passes recorded per suspect
_MOST_UNOWNED = 512  # parameters outside optimizers whose values are compared
_NORM_STEPS = (2, 8, 32)  # steps that are followed by a search for new batch norms, as are new optimizers


class UnreachedParameters:
    """Watches modules whose parameters get no gradient at first (suspects): do they run, and with a graph?

    Also records tensors with a graph that are passed to a module under ``no_grad``, which cuts the graph.

    To watch a module, the forward method of its class is wrapped: a hook would be saved and copied with the module.
    Wrapping makes ``torch.compile`` recompile, so once anything is compiled, no further class is wrapped.
    """

    def __init__(self, recorder: Recorder, cuts: Cuts) -> None:
        self._recorder = recorder
        self._cuts = cuts
        self._suspects: Numbers[nn.Module] = Numbers()
        self._runs: dict[int, int] = {}  # suspect -> forward passes recorded
        self._patches = Patches()
        self._classes: set[type[nn.Module]] = set()
        self._looked_at = -1
        self._norms: Numbers[nn.Module] = Numbers()
        self._versions: dict[int, int] | None = None  # batch norm -> version of its statistics
        self._optimizers = 0  # number of optimizers at the last search
        # batch norm -> running mean and variance when the watcher found it
        self._first: dict[int, tuple[Tensor, Tensor]] = {}
        self._values: dict[int, Tensor] = {}  # samples of parameters that no optimizer holds
        self._moved: int | None = None  # the last parameter seen to change, which is looked at further
        # no_grad context -> the line that entered it, and each norm's version at that time

    def look(self) -> None:
        """After a step, find the parameters that have had no gradient, and the batch norms that changed."""
        recorder = self._recorder
        records = recorder.parameters.records
        missing = {
            number
            for number in recorder.parameters.owners
            if number in records and number not in recorder.parameters.reached and records[number].trainable
        }
        self._cuts.missing = missing
        self._norm_statistics()
        self.who_moves()
        if not missing or len(records) == self._looked_at or recorder.steps > 3 * _RUNS:
            return
        self._looked_at = len(records)
        if anything_compiled():
            return
        for _, module in recorder.modules.alive():
            own = own_parameters(module)
            numbers = recorder.parameters.known(own)
            suspect = not missing.isdisjoint(numbers)
            if suspect and self._suspects.known(module) is None:
                self._runs[self._suspects.number(module)] = 0
            reached = not recorder.parameters.reached.isdisjoint(numbers)
            if suspect or ((own or children_of(module)) and not reached):
                self._wrap(type(module))

    def _wrap(self, kind: type[nn.Module]) -> None:
        # The forward of a compiled module is not a plain function.
        original = inspect.getattr_static(kind, "forward")
        if kind not in self._classes and isinstance(original, types.FunctionType):
            self._classes.add(kind)
            self._patches.replace(kind, "forward", _wrapped(original, self._before_forward))

    def restore(self) -> None:
        """Restore the forward methods."""
        if self._classes:
            self._patches.undo()
            self._classes.clear()

    def _before_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        if tracing() or not recorder.active:
            return
        with recorder.working():
            number = self._suspects.known(module)
            if number is not None and self._runs[number] < _RUNS:
                self._runs[number] += 1
                ids = recorder.parameters.ids(own_parameters(module))
                recorder.add(Ran(recorder.site(), ids, torch.is_grad_enabled()))
        for value in () if torch.is_grad_enabled() else tensors_in(*args, *kwargs.values()):
            self._cuts.cut(value, "no_grad")

    def _norm_statistics(self) -> None:
        """Record the batch norms whose statistics changed although their parameters are not being trained."""
        recorder, parameters = self._recorder, self._recorder.parameters
        optimizers = len(recorder.optimizers)
        if self._versions is None or recorder.steps in _NORM_STEPS or optimizers > self._optimizers:
            self._versions, self._optimizers = self._versions or {}, optimizers
            for _, module in recorder.modules.alive():
                if is_a(own_buffers(module).get("num_batches_tracked"), Tensor):
                    number = self._norms.number(module)
                    self._versions.setdefault(number, _version(module))
                    if number not in self._first and (statistics := _statistics(module)) is not None:
                        self._first[number] = statistics
        for number, module in self._norms.alive():
            before, now = self._versions[number], _version(module)
            self._versions[number] = now
            own = own_parameters(module)
            if now == before or not own:
                continue
            numbers = parameters.known(own)
            trained = not (numbers.isdisjoint(parameters.owners) and numbers.isdisjoint(parameters.reached))
            frozen = not any(parameter.requires_grad for parameter in own)
            if not trained or frozen:
                drift = statistics_drift(self._first.get(number), _statistics(module))
                recorder.add(StatisticsMoved(recorder.site(), parameters.ids(own), drift))

    def no_grad_entered(self, context: Any) -> None:
        """Record that the user's code turns gradients off."""
        site = self._cuts.no_grad()
        self._recorder.values.turned_off(context, decorated(site) if site else ())

    def no_grad_left(self, context: Any, *_: Any) -> None:
        """Record that gradients are on again."""
        self._recorder.values.turned_on(context)

    def who_moves(self) -> None:
        """Note which parameters change although no optimizer trains them: averages, copies, updates by hand.

        Before the first step, such a change counts as a step: later graphs should not reach back before it.
        """
        parameters, unstepped = self._recorder.parameters, not self._recorder.steps
        unowned = [
            (number, tensor)
            for number, tensor in parameters.numbers.alive()
            if unstepped or number not in parameters.owners or not tensor.requires_grad
            if not is_sharded(tensor)
        ]
        for number, tensor in unowned[:_MOST_UNOWNED]:
            if not parameters.records[number].still and number != self._moved:
                self._values.pop(number, None)
                continue
            now = sample(tensor)
            if not same(self._values.setdefault(number, now), now):
                parameters.records[number].still = False
                self._values[number], self._moved = now, number
                if unstepped:
                    self._recorder.thread.last_key = self._recorder.thread.newest_key


def _wrapped(original: types.FunctionType, before: Any) -> Any:
    """Return a function that calls ``before``, then the original.

    The function has the original's globals, because torch.jit resolves the names in a method's source there.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return original(*args, **kwargs)

    with_globals = types.FunctionType(
        wrapper.__code__, original.__globals__, original.__name__, None, wrapper.__closure__
    )
    return functools.wraps(original)(with_globals)


def _statistics(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Return samples of a batch norm's running means and variances."""
    buffers = own_buffers(module)
    if "running_mean" not in buffers or "running_var" not in buffers:
        return None
    return sample(buffers["running_mean"]), sample(buffers["running_var"])


def _version(module: Any) -> int:
    return tensor_version(own_buffers(module)["num_batches_tracked"])
