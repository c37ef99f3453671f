"""Ends a window: divides its sums and makes one optimizer step that no signal can interrupt."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation._decaying import gradients_kept
from gradgate.accumulation._forward_state import Snapshot
from gradgate.accumulation._gradient_sums import GradientSums
from gradgate.accumulation._gradients import (
    Slots,
    add,
    dense_values,
    exact_norm,
    local_part,
    multiply,
    norm_of_shards,
    total_norm,
)
from gradgate.accumulation._precision import (
    LossScale,
    Wide,
    WideState,
    round_gradients,
    takes_wide_gradients,
    widen_state,
)
from gradgate.accumulation._settings import Clear, Decay, UpdateSettings
from gradgate.errors import CountError, GraphError, NonfiniteError, TornStepError
from gradgate.ranks import SingleProcess
from gradgate.torch_compat import (
    foreach_clamp_max_,
    foreach_clamp_min_,
    foreach_zero_,
    get_signal_handler,
    is_dtensor,
    set_signal_handler,
    tensor_version,
)


class Finalized(NamedTuple):
    """The mean gradient of a window, which is ``factor`` times ``.grad``.

    Attributes:
        values: the tensors that hold the gradients' values.
        factor: multiplies ``values`` to give means.
        norm: the 2-norm of the mean gradient; a tensor with ``nonfinite="step"``, to avoid a synchronization.
        usable: whether optimizers may step.
        own_norm: the norm without the decayed gradients of earlier windows, if requested.
    """

    values: list[Tensor]
    factor: float
    norm: float | Tensor
    usable: bool
    own_norm: float | Tensor


def finalize(
    sums: GradientSums,
    slots: Slots,
    settings: UpdateSettings,
    coordinator: SingleProcess,
    scale: LossScale | None,
    micro_batches: int,
    own_norm: bool,
) -> Finalized:
    """Add up the sums over losses and ranks, unscale them, add decayed gradients, and compute the norm.

    Raises:
        CountError, GraphError, NonfiniteError: there is no gradient to step on.
        RankError: another rank has stopped in this window.
    """
    parameters = slots.parameters
    factor = coordinator.combine(sums.status, sums.combine)
    if factor is None:
        if not micro_batches and coordinator.tallies is None:
            raise CountError(
                "update: no backward was called in this window, so there is nothing to step on. Call "
                "update.backward(loss, count=...) inside the block, or skip the block."
            )
        raise CountError(
            f"update: all micro-batches of this window ({micro_batches}) have count 0, so the mean gradient is "
            "0/0. Skip this update: do not enter the block for a window without items."
        )
    if scale is not None:
        scale.unscale(settings.optimizers, parameters[0].device)
    values = dense_values(parameters)
    if not values:
        raise GraphError(
            f"update: no parameter that the optimizer owns received a gradient: {settings.names(parameters)}. The "
            "losses do not depend on these parameters: they are detached, frozen, or from another model. Check "
            "that the optimizer was made from this model's parameters."
        )
    own: float | Tensor | None = None
    if slots.carried is not None:
        multiply(values, factor)
        own = total_norm(values) if own_norm else None
        add(parameters, slots.carried)
        values, factor = dense_values(parameters), 1.0
    norm, usable = _measure(parameters, values, factor, settings)
    if not usable and settings.nonfinite == "raise":
        raise NonfiniteError(_where_nonfinite(parameters, sums, settings))
    return Finalized(values, factor, norm, usable, norm if own is None else own)


def _measure(
    parameters: Sequence[Tensor], values: list[Tensor], factor: float, settings: UpdateSettings
) -> tuple[float | Tensor, bool]:
    """Return the norm of ``factor`` times the gradients, and whether optimizers may step.

    Synchronizes with the device unless ``nonfinite="step"``.
    """
    sharded = {*map(type, parameters)} - {Tensor, torch.nn.Parameter} and any(map(is_dtensor, parameters))
    norm = norm_of_shards(parameters) if sharded else total_norm(values)
    if settings.nonfinite == "step" and isinstance(norm, Tensor):
        return norm * factor, True
    number = float(norm)
    if not math.isfinite(number) and not sharded:
        number = exact_norm(values)
    return number * factor, settings.nonfinite == "step" or math.isfinite(number)


def divide_and_clip(mean: Finalized, settings: UpdateSettings) -> None:
    """Divide the sums and clip the means, in a single pass over the gradients.

    As in ``clip_grad_norm_``, gradients are multiplied by ``min(1, clip_norm / (norm + 1e-6))``.
    """
    clip: float | Tensor = 1.0 if settings.clip_norm is None else settings.clip_norm / (mean.norm + 1e-6)
    clip = clip.clamp(max=1.0) if isinstance(clip, Tensor) else min(clip, 1.0)
    multiply(mean.values, clip * mean.factor)
    if settings.clip_value is not None:
        foreach_clamp_min_(mean.values, -settings.clip_value)
        foreach_clamp_max_(mean.values, settings.clip_value)


def step(
    parameters: Sequence[Tensor], wide: Sequence[Wide], settings: UpdateSettings, scale: LossScale | None
) -> None:
    """Step every optimizer once. If one raises, restore the copy that ``undo_step`` made.

    Raises:
        TornStepError: an optimizer raised after it had changed something, and ``undo_step`` is off.
    """
    snapshot = Snapshot.before_step(parameters, settings.optimizers) if settings.undo_step else None
    before = versions(parameters, settings.optimizers) if snapshot is None else {}
    if wide and not all(map(takes_wide_gradients, settings.optimizers)):
        round_gradients(wide)
        wide = ()
    for optimizer in settings.optimizers if wide else ():
        widen_state(optimizer, wide)
    try:
        with WideState() if wide else nullcontext(), gradients_kept(settings):
            for optimizer in settings.optimizers:
                if scale is None:
                    optimizer.step()
                else:
                    scale.step(optimizer)
    except BaseException as error:
        if snapshot is not None:
            snapshot.restore()
        elif _may_have_changed(parameters, before, settings):
            raise TornStepError(_torn(parameters, before, settings, error)) from error
        raise


def clear_gradients(parameters: Sequence[Tensor], clear: Clear) -> None:
    """Clear the gradients of ``parameters`` as the ``clear`` option requires."""
    if clear == "none":
        for parameter in parameters:
            parameter.grad = None
        return
    gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if isinstance(clear, Decay):
        multiply(gradients, clear.factor)
    elif gradients:
        foreach_zero_(gradients)


def versions(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> dict[int, int]:
    """Return the version counter of every tensor that a step may change; in-place writes increase it."""
    tensors = list(parameters)
    states = (each for optimizer in optimizers for each in optimizer.state.values() if isinstance(each, dict))
    for state in states:
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return dict(zip(map(id, tensors), map(tensor_version.use, tensors), strict=True))


def _may_have_changed(parameters: Sequence[Tensor], before: dict[int, int], settings: UpdateSettings) -> bool:
    """Return whether a failed step may have changed anything.

    torch's optimizers increase tensor versions, except in fused kernels; others may write through ``.data``.
    """
    if not all(map(takes_wide_gradients, settings.optimizers)):
        return True
    return versions(parameters, settings.optimizers) != before


def _torn(
    parameters: Sequence[Tensor], before: dict[int, int], settings: UpdateSettings, error: BaseException
) -> str:
    changed = [p for p in parameters if tensor_version(p) != before.get(id(p))]
    what = f"({settings.names(changed)})" if changed else "visibly, and perhaps others"
    return (
        f"update: the optimizer raised {type(error).__name__} in the middle of its step, after changing "
        f"{len(changed)} of {len(parameters)} parameters {what}. Parameters and state may not match. Reload the "
        "last checkpoint. Accumulator(..., undo_step=True) undoes a step that fails."
    )


def _where_nonfinite(parameters: Sequence[Tensor], sums: GradientSums, settings: UpdateSettings) -> str:
    held = [(p, p.grad) for p in parameters if p.grad is not None]
    bad = [
        p for p, grad in held if not (grad.coalesce().values() if grad.is_sparse else grad).isfinite().all()
    ]
    losses = [float(loss) for running in sums.by_name.values() for loss in running.losses]
    numbers = [str(number) for number, loss in enumerate(losses, 1) if not math.isfinite(loss)]
    cause = f" Losses that are not finite: number {', '.join(numbers[:5])}." if numbers else ""
    return (
        f"update: the gradient of this window is not finite in {len(bad)} of {len(parameters)} parameters: "
        f"{settings.names(bad)}.{cause} No step was made. Lower the learning rate or clip, "
        "or pass nonfinite='skip' to skip such windows."
    )


_SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))  # looking up enum members is slow


class uninterrupted:  # noqa: N801 - it is used like the functions of contextlib
    """Deliver SIGINT and SIGTERM after the block rather than inside it.

    Python delivers signals only to the main thread, so other threads have nothing to delay. A signal without a
    Python handler ends the process or does nothing, and is left alone.

    A handler that raises may run between any two calls, even while handlers are installed or restored. Nested
    ``finally`` blocks therefore repeat the restore; each block survives one more signal.
    """

    def __init__(self) -> None:
        self._usual: dict[int, Any] = {}
        self._held: list[int] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _SIGNALS:
            handler = get_signal_handler.use(number)
            if callable(handler):
                self._usual[number] = handler
        complete = False
        try:
            for number in self._usual:
                set_signal_handler.use(number, self._hold)
            complete = True
        finally:
            if not complete:
                try:
                    self._give_back()
                finally:
                    self._leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _hold(self, received: int, frame: FrameType | None) -> None:
        self._held.append(received)

    def _leave(self) -> None:
        try:
            try:
                try:
                    self._give_back()
                finally:
                    self._give_back()
            finally:
                self._give_back()
        finally:
            if self._held:
                with ExitStack() as stack:  # deliver each signal, even if the previous handler raises
                    for received in reversed(self._held):
                        stack.callback(signal.raise_signal, received)

    def _give_back(self) -> None:
        for number, handler in list(self._usual.items()):
            if get_signal_handler.use(number) == self._hold:  # a handler may have installed another one since
                set_signal_handler.use(number, handler)
            self._usual.pop(number, None)  # handlers are restored; nothing to repeat
