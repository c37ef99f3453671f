"""Watch learning-rate schedulers, gradient scalers and data loaders."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any, Literal

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from gradgate.autograd_graph import roots_of
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._user_objects import (
    fields_of,
    is_a,
    items_of,
    number_of,
    pairs_of,
    tensors_in,
)
from gradgate.events import EpochEnded, EpochStarted, ScalerUsed, Scheduled, SchedulerMade
from gradgate.torch_compat import node_number, sequence_of

_PERIODIC = ("CyclicLR", "CosineAnnealingWarmRestarts")
_HORIZONS = ("T_max", "total_steps", "total_iters", "step_size", "T_0", "patience")
_MOST_SCALED = 4096
_MOST_ITERATORS = 1024

SCHEDULERS = dict.fromkeys(
    kind for kind in vars(lr_scheduler).values() if isinstance(kind, type) and issubclass(kind, LRScheduler)
)


class Schedulers:
    """Watches every scheduler's ``step``, except the call in the constructor."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = 0
        self._making = 0

    def made(self, scheduler: Any, *_: Any, **__: Any) -> Around:
        """Record that a scheduler was constructed."""
        self._making += 1
        try:
            yield
        finally:
            self._making -= 1
        if not self._making:
            self._meet(scheduler)

    def _meet(self, scheduler: Any) -> int:
        recorder = self._recorder
        number, kind = recorder.schedulers.number(scheduler), type(scheduler).__name__
        optimizer = fields_of(scheduler).get("optimizer")
        steps = recorder.optimizers.number(optimizer) if optimizer is not None else -1
        facts = _horizon(scheduler), kind in _PERIODIC, _rates(optimizer)
        recorder.add(SchedulerMade(recorder.site(), number, kind, steps, *facts))
        return number

    def step(self, scheduler: Any, *_: Any, **__: Any) -> Around:
        """Record a scheduler's step."""
        recorder = self._recorder
        start, at = recorder.clock, recorder.events.count
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._making:
            return
        if not self._depth:
            recorder.took("schedule", start, at)
        number = recorder.schedulers.known(scheduler)
        number = self._meet(scheduler) if number is None else number
        rates = _rates(fields_of(scheduler).get("optimizer"))
        recorder.add(Scheduled(recorder.site(), number, rates, inner=self._depth > 0))


def _rates(optimizer: Any) -> tuple[float, ...]:
    groups = optimizer.param_groups if is_a(optimizer, Optimizer) else ()
    return tuple(number_of(group["lr"]) or 0.0 for group in groups)


def _horizon(scheduler: Any) -> float | None:
    """Return a scheduler's length in steps, if it has one.

    For a LambdaLR, the length is the largest number that its functions contain.
    """
    inner, starts = sequence_of(scheduler)
    if inner:
        known = [_horizon(each) for each in inner]
        if starts:
            return None if known[-1] is None else float(starts[-1]) + known[-1]
        return max((each for each in known if each is not None), default=None)
    fields = fields_of(scheduler)
    milestones = [
        key if is_a(fields["milestones"], dict) else item for key, item in pairs_of(fields.get("milestones"))
    ]
    numbers = [number for each in milestones if (number := number_of(each)) is not None]
    if numbers:
        return max(numbers)
    named = number_of(next((fields[name] for name in _HORIZONS if name in fields), None))
    if named is not None:
        return named
    numbers = [number for function in items_of(fields.get("lr_lambdas")) for number in _numbers(function)]
    return max(numbers, default=None)


def _numbers(function: Any) -> Iterator[float]:
    """Yield the constants of a function, and the numbers that it reads from arguments, closures and globals."""
    values: list[Any] = []
    while type(function) in (functools.partial, types.MethodType):
        if type(function) is types.MethodType:
            values += fields_of(function.__self__).values()
            function = function.__func__
        else:
            values += [*function.args, *function.keywords.values()]
            function = function.func
    values += fields_of(function).values()
    if type(function) is types.FunctionType:
        known, code = function.__globals__, function.__code__
        values += function.__defaults__ or ()
        values += [known[name] for name in code.co_names if name in known]
        values += code.co_consts
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                values.append(cell.cell_contents)
    yield from (float(each) for each in values if type(each) in (int, float) and 1 < each < float("inf"))


class Scalers:
    """Watches torch.amp.GradScaler. A disabled scaler is watched, too."""

    def __init__(self, recorder: Recorder, gradients: Gradients, steps: Steps) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._steps = steps

    def used(self, op: Literal["made", "update"], /, scaler: Any, *_: Any, **__: Any) -> Around:
        """Record the construction of a scaler, or a call of its ``update``, which may change the scale."""
        yield
        self._recorder.add(ScalerUsed(self._recorder.site(), op, self._recorder.scalers.number(scaler)))

    def scale(self, scaler: Any, outputs: Any) -> Around:
        """Record that a scaler scaled a loss, and remember the node of the product."""
        scaled = yield
        recorder = self._recorder
        number = recorder.scalers.number(scaler)
        if len(recorder.scaled) > _MOST_SCALED:
            recorder.scaled.clear()
        for node in roots_of(tensors_in(scaled)):
            # A disabled scaler returns the loss unchanged, so the node isn't a product with the scale.
            recorder.scaled[node_number.use(node)] = ~number if scaled is outputs else number
        recorder.add(ScalerUsed(recorder.site(), "scale", number))

    def unscale(self, scaler: Any, optimizer: Any) -> Around:
        """Record that the user's code unscaled gradients. Ignore calls from the scaler's own ``step``."""
        recorder, by_user = self._recorder, not self._recorder.thread.quiet
        yield
        if by_user:
            numbers = recorder.scalers.number(scaler), recorder.optimizers.number(optimizer)
            recorder.add(ScalerUsed(recorder.site(), "unscale", *numbers))
        self._gradients.note()

    def step(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> Around:
        """Record that a scaler stepped an optimizer, or skipped the step."""
        recorder, steps = self._recorder, self._recorder.steps
        number = recorder.scalers.number(scaler)
        self._gradients.compare()
        self._steps.scaler, before = number, self._steps.scaler
        try:
            yield
        finally:
            self._steps.scaler = before
        known = recorder.optimizers.number(optimizer)
        skipped = recorder.steps == steps
        recorder.add(ScalerUsed(recorder.site(), "step", number, known, skipped))
        self._gradients.note()


class Loaders:
    """Watches where epochs begin and end. An epoch is an iteration over a DataLoader."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # id of an iterator -> number of its loader, batches so far
        self._running: dict[int, list[int]] = {}
        self._kinds: set[type | None] = set()

    def iterate(self, loader: Any) -> Around:
        """Record that an epoch began."""
        recorder = self._recorder
        iterator = yield
        self._watch(type(iterator))
        number = recorder.loaders.number(loader)
        if len(self._running) > _MOST_ITERATORS:  # many iterators were never exhausted
            self._running.clear()
        self._running[id(iterator)] = [number, 0]
        recorder.add(EpochStarted(recorder.site(), number))

    def _watch(self, kind: type) -> None:
        """Watch ``__next__`` of a loader's iterators, whose classes have no public name."""
        owner = next((base for base in kind.__mro__ if "__next__" in vars(base)), None)
        if owner not in self._kinds and isinstance(vars(owner).get("__next__"), types.FunctionType):
            self._kinds.add(owner)
            self._recorder.patches.wrap(owner, "__next__", self._next)

    def _next(self, original: Any, iterator: Any) -> Any:
        recorder = self._recorder
        start, at = recorder.clock, recorder.events.count
        try:
            item = original(iterator)
        except StopIteration:
            if recorder.active:
                with recorder.working():
                    number, batches = self._running.pop(id(iterator), (-1, 0))
                    recorder.add(EpochEnded(recorder.site(), number, batches))
            raise
        if recorder.active:
            running = self._running.get(id(iterator))
            if running is not None:
                running[1] += 1
            recorder.took("load", start, at)
        return item
