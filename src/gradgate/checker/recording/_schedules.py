"""Learning-rate schedulers, gradient scalers, data loaders: what goes on around the steps."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from gradgate.autograd_graph import roots_of
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._tracing import tracing
from gradgate.events import (
    EpochEnded,
    EpochStarted,
    Scaled,
    ScalerMade,
    ScalerStepped,
    ScalerUpdated,
    Scheduled,
    SchedulerMade,
    Unscaled,
)
from gradgate.torch_compat import inner_milestones, inner_schedulers, node_number

_PERIODIC = ("CyclicLR", "CosineAnnealingWarmRestarts")
_HORIZONS = ("T_max", "total_steps", "total_iters", "step_size", "T_0", "patience")


class Schedulers:
    """Watches every scheduler's ``step``; the call in its constructor does not count."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = 0
        self._making = 0

    def install(self) -> None:
        """Stand around each class that has a ``step`` or a constructor of its own."""
        patches = self._recorder.patches
        classes = [
            kind
            for kind in vars(lr_scheduler).values()
            if isinstance(kind, type) and issubclass(kind, LRScheduler)
        ]
        for kind in dict.fromkeys(classes):
            if "step" in vars(kind):
                patches.wrap(kind, "step", self._around_step)
            if "__init__" in vars(kind):
                patches.wrap(kind, "__init__", self._around_init)

    def _around_init(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self._making += 1
        try:
            original(scheduler, *args, **kwargs)
        finally:
            self._making -= 1
        recorder = self._recorder
        if recorder.active and not self._making:
            with recorder.working():
                self._meet(scheduler)

    def _meet(self, scheduler: Any) -> int:
        recorder = self._recorder
        number = recorder.schedulers.number(scheduler)
        optimizer = getattr(scheduler, "optimizer", None)
        kind = type(scheduler).__name__
        recorder.add(
            SchedulerMade(
                recorder.site(),
                number,
                kind,
                recorder.optimizers.number(optimizer) if optimizer is not None else -1,
                _horizon(scheduler),
                kind in _PERIODIC,
                _rates(optimizer),
            )
        )
        return number

    def _around_step(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        self._depth += 1
        start = recorder.clock
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            self._depth -= 1
        if recorder.active and not self._depth and not self._making:
            recorder.took("schedule", start, recorder.journal.count)
        if recorder.active and not self._making and not tracing():
            with recorder.working():
                number = recorder.schedulers.known(scheduler)
                number = self._meet(scheduler) if number is None else number
                rates = _rates(getattr(scheduler, "optimizer", None))
                recorder.add(Scheduled(recorder.site(), number, rates, inner=self._depth > 0))
        return result


def _rates(optimizer: Any) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in getattr(optimizer, "param_groups", ()))


def _horizon(scheduler: Any) -> float | None:
    """Return after how many steps a scheduler has run its course, as far as it says so.

    One that asks a function has no such number: the largest that its functions were given stands for it.
    """
    inner = inner_schedulers(scheduler)
    if inner:
        known = [_horizon(one) for one in inner]
        starts = inner_milestones(scheduler)
        if starts:
            return None if known[-1] is None else float(starts[-1]) + known[-1]
        return max((one for one in known if one is not None), default=None)
    milestones = getattr(scheduler, "milestones", None)
    if milestones:
        return float(max(milestones))
    named = next((getattr(scheduler, name) for name in _HORIZONS if hasattr(scheduler, name)), None)
    if isinstance(named, (int, float)):
        return float(named)
    functions = getattr(scheduler, "lr_lambdas", None)
    numbers = [number for one in functions or () for number in _numbers(one)]
    return max(numbers, default=None)


def _numbers(function: Any) -> Iterator[float]:
    """Yield the numbers that a function was given: bound, closed over, or held by the object it belongs to."""
    values: list[Any] = []
    while isinstance(function, functools.partial):
        values += [*function.args, *function.keywords.values()]
        function = function.func
    values += getattr(function, "__defaults__", None) or ()
    values += vars(getattr(function, "__self__", None) or function).values() if _has_dict(function) else ()
    code = getattr(function, "__code__", None)
    if code is not None:
        known = getattr(function, "__globals__", {})
        values += [known[name] for name in code.co_names if name in known]
        values += code.co_consts
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not bound yet
            values.append(cell.cell_contents)
    yield from (float(one) for one in values if isinstance(one, (int, float)) and 1 < one < float("inf"))


def _has_dict(function: Any) -> bool:
    return hasattr(getattr(function, "__self__", None) or function, "__dict__")


class Scalers:
    """Watches torch.amp.GradScaler; a scaler that is switched off is followed as if it were on."""

    def __init__(self, recorder: Recorder, gradients: Gradients, steps: Steps) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._steps = steps

    def install(self) -> None:
        """Stand around the scaler's methods."""
        patches = self._recorder.patches
        patches.wrap(GradScaler, "__init__", self._around_init)
        patches.wrap(GradScaler, "scale", self._around_scale)
        patches.wrap(GradScaler, "unscale_", self._around_unscale)
        patches.wrap(GradScaler, "step", self._around_step)
        patches.wrap(GradScaler, "update", self._around_update)

    def _around_init(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        recorder = self._recorder
        if recorder.active:
            with recorder.working():
                number = recorder.scalers.number(scaler)
                recorder.add(ScalerMade(recorder.site(), number, scaler.is_enabled()))

    def _around_scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        recorder = self._recorder
        if recorder.active and not tracing():
            with recorder.working():
                number = recorder.scalers.number(scaler)
                if len(recorder.scaled) > 4096:
                    recorder.scaled.clear()
                for node in roots_of(scaled if isinstance(scaled, (Tensor, list, tuple)) else ()):
                    # A scaler that is switched off returns the loss itself: its node is no product with the scale.
                    recorder.scaled[node_number.use(node)] = ~number if scaled is outputs else number
                recorder.add(Scaled(recorder.site(), number))
        return scaled

    def _around_unscale(self, original: Any, scaler: Any, optimizer: Any) -> Any:
        recorder = self._recorder
        inside = recorder.quiet
        with recorder.library():
            result = original(scaler, optimizer)
        if recorder.active:
            with recorder.working():
                if not inside:  # else the scaler does it in its own step
                    numbers = recorder.scalers.number(scaler), recorder.optimizers.number(optimizer)
                    recorder.add(Unscaled(recorder.site(), *numbers))
                self._gradients.note()
        return result

    def _around_step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.active:
            return original(scaler, optimizer, *args, **kwargs)
        with recorder.working():
            self._gradients.compare()
        number, steps = recorder.scalers.number(scaler), recorder.steps
        self._steps.scaler, before = number, self._steps.scaler
        try:
            with recorder.library():
                result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._steps.scaler = before
        with recorder.working():
            skipped = recorder.steps == steps
            known = recorder.optimizers.number(optimizer)
            recorder.add(ScalerStepped(recorder.site(), number, known, skipped))
            self._gradients.note()
        return result

    def _around_update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scaler, *args, **kwargs)
        recorder = self._recorder
        if recorder.active:
            with recorder.working():
                number = recorder.scalers.number(scaler)
                recorder.add(ScalerUpdated(recorder.site(), number))
        return result


class Loaders:
    """Watches where a DataLoader begins and ends: the epochs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._owners: dict[int, int] = {}
        self._kinds: set[type | None] = set()

    def install(self) -> None:
        """Stand around the loader's iteration."""
        patches = self._recorder.patches
        patches.wrap(DataLoader, "__iter__", self._around_iter)

    def _around_iter(self, original: Any, loader: Any) -> Any:
        recorder = self._recorder
        iterator = original(loader)
        self._watch(type(iterator))
        if recorder.active:
            with recorder.working():
                number = recorder.loaders.number(loader)
                if len(self._owners) > 1024:  # iterators that were never exhausted
                    self._owners.clear()
                self._owners[id(iterator)] = number
                # A loader over an iterable that is asked for its length warns when more comes than it said.
                length: int | None = None
                if not isinstance(loader.dataset, IterableDataset):
                    with contextlib.suppress(TypeError):
                        length = len(loader)
                recorder.add(EpochStarted(recorder.site(), number, length))
        return iterator

    def _watch(self, kind: type) -> None:
        """Stand around ``__next__`` of a loader's iterators, whose classes have no public name."""
        owner = next((one for one in kind.__mro__ if "__next__" in vars(one)), None)
        if owner not in self._kinds and isinstance(vars(owner).get("__next__"), types.FunctionType):
            self._kinds.add(owner)
            self._recorder.patches.wrap(owner, "__next__", self._around_next)

    def _around_next(self, original: Any, iterator: Any) -> Any:
        recorder = self._recorder
        try:
            if not recorder.active:
                return original(iterator)
            with recorder.timed("load"):
                return original(iterator)
        except StopIteration:
            if recorder.active:
                with recorder.working():
                    number = self._owners.pop(id(iterator), -1)
                    recorder.add(EpochEnded(recorder.site(), number))
            raise
