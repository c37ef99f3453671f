"""Opens a window, and ends it with a step or a rollback."""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradgate.accumulation._batch_norm import BatchNorms
from gradgate.accumulation._calls import MicroBatchCounter
from gradgate.accumulation._finalize import Finalized, clear_gradients, divide_and_clip, finalize, step
from gradgate.accumulation._gradient_sums import GradientSums
from gradgate.accumulation._gradients import Leftovers, Slots, check_unowned
from gradgate.accumulation._loss_checks import LossChecks
from gradgate.accumulation._precision import LossScale, keep_loaded_state_wide
from gradgate.accumulation._settings import UpdateSettings, in_use, owned_parameters
from gradgate.batch_size import NoiseScale, SmallBatch, add_window, bind_noise_scale, refuse_sharded
from gradgate.errors import UpdateError
from gradgate.forward_state import AtRest, is_out_of_memory
from gradgate.ownership import claims
from gradgate.ranks import ALONE, RankSetup, ShardedCoordinator, SingleProcess
from gradgate.signals import uninterrupted
from gradgate.tally import Tally

Self = TypeVar("Self", bound="OpenWindow")

_NO_SUMS = GradientSums()  # of windows that are not open yet
_FIRST = 3  # an accumulator checks every gradient in its first windows


@dataclass(eq=False)
class TrainingState:
    """The state that an accumulator keeps between windows."""

    settings: UpdateSettings
    ranks: RankSetup
    batch_norms: BatchNorms
    noise_scale: NoiseScale | None = None
    loss_checks: LossChecks = field(default_factory=LossChecks)
    leftovers: Leftovers = field(default_factory=Leftovers)
    at_rest: AtRest = field(default_factory=AtRest)
    windows: int = 0
    steps: int = 0
    samples_that_fit: int | None = None
    unfinished: dict[str, Any] | None = None  # a loaded window, which the next update continues
    open_update: OpenWindow | None = None
    stepping: bool = False
    # Called before each step with the sums and the factor that turns them into means. Hooks must not change
    # the sums.
    gradient_hooks: OrderedDict[int, Callable[[Any, list[Tensor], float], None]] = field(
        default_factory=OrderedDict
    )
    update_hooks: OrderedDict[int, Callable[[Any], object]] = field(default_factory=OrderedDict)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle, with the gradients that torch leaves out of both."""
        if self.open_update is not None:
            raise UpdateError(
                "Accumulator: an update is open, and a copy or pickle of the accumulator would lose its window. "
                "Copy or save the accumulator before the block or after it. Inside the block, save "
                "accumulator.state_dict(), which includes the window."
            )
        gradients = [(parameter, parameter.grad) for parameter in self.settings.parameters]
        left = [
            gradient.detach().clone() if gradient is not None and self.leftovers.holds(p, gradient) else None
            for p, gradient in gradients
        ]
        return {**vars(self), "leftovers": left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, leftovers=Leftovers())
        parameters = self.settings.parameters
        for parameter, gradient in zip(parameters, state["leftovers"], strict=True):
            if gradient is not None:
                parameter.grad_dtype = gradient.dtype
                parameter.grad = gradient
        self.leftovers.remember(parameters)
        if self.noise_scale is not None:
            bind_noise_scale(self.noise_scale, self)
        watch_optimizers(self)


class OpenWindow:
    """A window, from its opening to its step or its rollback."""

    _slots: Slots  # set when the window opens
    _state: Literal["new", "open", "closed"] = "new"
    _sums = _NO_SUMS
    _scale: LossScale | None = None
    _coordinator: SingleProcess = ALONE
    _own = math.inf  # this rank's number of micro-batches; later ones repeat the last
    _tallies: dict[str, Tally] | None = None  # over several ranks; otherwise None
    _norm: float | Tensor | None = None
    _noise_scale: float | None = None
    _stepped = _left = False
    _step = 0  # the number of this step, counting all steps of the accumulator
    _first = False

    def __init__(self, shared: TrainingState, *, may_replay: bool = False) -> None:
        self._shared = shared
        self._settings = shared.settings
        # Functions that undo the window's actions so far, oldest first. Empty once the window has ended.
        self._undo: list[Callable[[], object]] = []
        self._counter = MicroBatchCounter()
        self._may_replay = may_replay

    def __enter__(self: Self) -> Self:
        if self._state != "new":
            raise UpdateError(
                "update: this update was already entered, and an update is one window. Call "
                "accumulator.update() again for each window."
            )
        self._grad_enabled = torch.is_grad_enabled()
        try:
            self._open()
            return self  # inside `try`, so that an interrupt arriving now is rolled back too
        except BaseException as error:
            self._give_up()
            self._report(error)
            raise

    def _open(self) -> None:
        """Open the window. Every action registers its rollback first, in case a signal interrupts it."""
        shared, settings = self._shared, self._settings
        # Read again for each window, so that groups added later belong to the next window.
        parameters = owned_parameters(settings.optimizers)
        if shared.noise_scale is not None:
            refuse_sharded(parameters)
        coordinator = shared.ranks.coordinator(parameters, settings, may_replay=self._may_replay)
        self._coordinator = coordinator
        check_unowned(parameters, settings)
        self._slots = slots = Slots(parameters, settings, shared.leftovers)
        self._undo.append(self._end)
        claims[id(shared)] = parameters
        self._state, shared.open_update = "open", self
        self._scale = None if settings.scaler is None else LossScale(settings.scaler)
        if self._scale is not None:
            self._undo.append(self._scale.roll_back)
        self._undo.append(slots.put_back)
        slots.take()
        self._first = shared.windows < _FIRST
        self._sums = GradientSums(
            parameters,
            self._scale,
            thorough=self._first,
            measures=shared.noise_scale is not None,
            sharded=coordinator if isinstance(coordinator, ShardedCoordinator) else None,
        )
        if coordinator is not ALONE or shared.batch_norms.statistics == "window":
            self._undo += [coordinator.discard, shared.batch_norms.close]
            with uninterrupted():  # both calls change modules before they can undo the change
                coordinator.hold()
                shared.batch_norms.open()
        if shared.unfinished is not None:  # continue the loaded window
            self._counter.resume(shared.unfinished["micro_batches"])
            if self._scale is not None:
                self._scale.resume(shared.unfinished["scale"])
            self._sums.resume(shared.unfinished["sums"])
            if (first := shared.unfinished["first"]) is not None:
                self._sums.first = partial(SmallBatch, *first)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
            self._left = error is None
        finally:
            if self._undo:  # an interrupt kept _leave from rolling back
                self._give_up()
            if not self._left:  # an interrupt may have kept torch.no_grad() from ending
                torch.set_grad_enabled(self._grad_enabled)

    def _leave(self, error: BaseException | None) -> None:
        finished = error is None and self._state == "open"
        try:
            if finished:
                with torch.no_grad():
                    self._finish()
        except Exception as failure:
            self._report(failure)
            raise
        finally:
            if error is not None:
                self._report(error)
            if self._undo:
                self._give_up()
        if error is not None and (explained := self._coordinator.explained(error)) is not error:
            raise explained from error
        if finished:
            for hook in tuple(self._shared.update_hooks.values()):  # a hook may remove itself
                hook(self)

    def _finish(self) -> None:
        shared, settings, slots = self._shared, self._settings, self._slots
        self._counter.check_losses()
        own = int(min(self._counter.micro_batches, self._own))
        noise = shared.noise_scale
        pooling = shared.batch_norms.statistics == "window"
        pools = shared.batch_norms.close() if pooling else []
        mean = finalize(self._sums, slots, settings, self._coordinator, self._scale, own, noise is not None)
        self._norm = mean.norm
        if not mean.usable:
            if self._scale is not None:
                self._scale.overflowed()
            return
        if pooling:
            shared.batch_norms.add_ranks(pools, self._coordinator)
        for hook in tuple(shared.gradient_hooks.values()):
            hook(self, mean.values, mean.factor)
        seen = None if noise is None else self._seen(mean)
        divide_and_clip(mean, settings)
        with uninterrupted():
            shared.stepping = True
            try:
                step(slots.parameters, slots.wide, settings, self._scale)
            finally:
                shared.stepping = False
            try:
                self._stepped = True
                shared.steps += 1
                self._step = shared.steps
                if noise is not None and seen is not None:
                    add_window(noise, *seen)
                    self._noise_scale = noise.value
                for pool in pools:
                    pool.update()
                clear_gradients(slots.parameters, settings.clear)
                if settings.scaler is not None:
                    settings.scaler.update()
                for scheduler in settings.schedulers:
                    scheduler.step()
            finally:
                # Runs even if a scheduler raises, because the optimizers have stepped.
                self._undo.clear()
                slots.close()
                self._end()

    def _seen(self, mean: Finalized) -> tuple[list[SmallBatch], int, float, float]:
        """Return the window's contribution to the noise scale. Synchronizes with the device."""
        firsts = [SmallBatch(*first) for first in self._coordinator.firsts(self._sums.first)]
        tallies = self._coordinator.tallies
        if tallies is None:
            counts = [running.total_count() for running in self._sums.by_name.values()]
        else:
            counts = [tally.count for tally in tallies.values()]
        norm = float(mean.own_norm)
        return firsts, len(counts), norm * norm, counts[0]  # norm**2 would raise on overflow

    def _report(self, error: BaseException) -> None:
        self._coordinator.report(error, out_of_memory=self._may_replay and is_out_of_memory(error))

    def _give_up(self) -> None:
        """Roll back if the window is still open, even if more signals arrive meanwhile."""
        try:
            if self._undo:
                with uninterrupted(), ExitStack() as stack:  # the stack unwinds even if a part raises
                    stack.callback(self._undo.clear)
                    for undo in self._undo:
                        stack.callback(undo)
        except KeyboardInterrupt:  # it arrived before signals were delayed
            self._give_up()
            raise

    def _end(self) -> None:
        """Release everything except the values for logging."""
        shared = self._shared
        self._state = "closed"
        self._tallies = self._coordinator.tallies
        self._sums.release()
        self._coordinator.release()
        shared.open_update = shared.unfinished = None
        shared.windows += 1
        claims.pop(id(shared), None)

    def _require_open(self, verb: str) -> None:
        if self._state != "open":
            raise UpdateError(
                f"{verb}: this update is {self._state}, not open. Use it inside `with accumulator.update() as "
                "update:`."
            )


def register(hooks: OrderedDict[int, Any], hook: Callable[..., object]) -> RemovableHandle:
    """Register a hook; the returned handle removes it."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def watch_optimizers(state: TrainingState) -> None:
    """While ``state`` lives, make ``optimizer.step()`` raise in a window, and keep loaded moments unrounded."""
    in_use.add(state.settings.models)
    weakref.finalize(state, claims.pop, id(state), None)
    weak = weakref.ref(state)

    def refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        state = weak()
        if state is not None and state.open_update is not None and not state.stepping:
            raise UpdateError(
                "update: optimizer.step() was called inside the block, where the gradient sum is unfinished. "
                "Remove the call: the optimizer steps when the block ends."
            )

    for optimizer in state.settings.optimizers:
        try:
            handles = [optimizer.register_step_pre_hook(refuse)]
        except AttributeError:  # a wrapper around an optimizer, without torch's hooks
            continue
        for handle in (*handles, *keep_loaded_state_wide(optimizer, state.settings.accumulate_dtype)):
            weakref.finalize(state, handle.remove)  # an update may outlive the accumulator
