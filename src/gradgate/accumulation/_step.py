"""Ends a window: unscales, divides and clips its sum, steps the optimizers and clears the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation._gradients import add, dense_values, local_part, multiply, total_norm
from gradgate.accumulation._loss_scale import LossScale
from gradgate.accumulation._precision import (
    Wide,
    WideState,
    round_gradients,
    takes_wide_gradients,
    widen_state,
)
from gradgate.accumulation._settings import Clear, Decay, UpdateSettings, owned_parameters
from gradgate.errors import GraphError, NonfiniteError, OptionError, TornStepError
from gradgate.forward_state import Snapshot
from gradgate.torch_compat import (
    is_dtensor,
    tensor_version,
)

_NOTHING = nullcontext()


class Mean(NamedTuple):
    """The mean gradient of a window, which is ``factor`` times ``.grad``."""

    values: list[Tensor]  # the tensors that hold the gradients' values
    factor: float
    norm: float | Tensor  # of the mean gradient; with nonfinite="step", a tensor, which is not read
    usable: bool  # whether optimizers may step
    norm_of_window: float | Tensor  # if requested, the norm without the decayed gradients of earlier windows


def mean_of(
    parameters: Sequence[Tensor],
    carried: Sequence[Tensor | None] | None,
    factor: float,
    settings: UpdateSettings,
    scale: LossScale | None,
    *,
    received: bool,
    measures: bool,
    losses: Callable[[], list[float]],
) -> Mean:
    """Unscale the sum in ``.grad``, add decayed gradients, and compute the norm.

    Args:
        parameters: the parameters that the accumulator owns.
        carried: the decayed gradients of earlier windows, to be added to the mean; None if nothing decays.
        factor: the factor that turns the sum into the mean.
        settings: the accumulator's settings.
        scale: the window's loss scale, if it has one.
        received: whether any parameter received a gradient in this window.
        measures: compute the norm of the window's own gradient too.
        losses: returns the losses of the window, for the message about a gradient that is not finite.

    Raises:
        GraphError: no parameter received a gradient.
        NonfiniteError: the gradient is not finite, and ``nonfinite`` is "raise".
    """
    if scale is not None:
        scale.unscale(settings.optimizers, parameters[0].device)
    values = dense_values(parameters)
    if not received:
        raise GraphError(
            f"update: no parameter that the optimizer owns received a gradient: {settings.names(parameters)}. The "
            "losses do not depend on these parameters: they are detached, frozen, or from another model. Check "
            "that the optimizer was made from this model's parameters."
        )
    norm_of_window: float | Tensor | None = None
    if carried is not None:
        multiply(values, factor)
        norm_of_window = total_norm(values) if measures else None
        add(parameters, carried)
        values, factor = dense_values(parameters), 1.0
    norm, usable = _measure(parameters, values, factor, settings)
    if not usable and settings.nonfinite == "raise":
        raise NonfiniteError(_where_nonfinite(parameters, losses(), settings))
    return Mean(values, factor, norm, usable, norm if norm_of_window is None else norm_of_window)


def _measure(
    parameters: Sequence[Tensor], values: list[Tensor], factor: float, settings: UpdateSettings
) -> tuple[float | Tensor, bool]:
    """Return the norm of ``factor`` times the gradients, and whether optimizers may step.

    Synchronizes with the device unless ``nonfinite="step"``.
    """
    sharded = {*map(type, parameters)} - {Tensor, torch.nn.Parameter} and any(map(is_dtensor, parameters))
    gradients = _with_shards(parameters) if sharded else values
    norm = total_norm(gradients)
    if settings.nonfinite == "step" and isinstance(norm, Tensor):
        return norm * factor, True
    number = float(norm)
    if not math.isfinite(number):
        number = float(total_norm(gradients, scaled=True))  # squares may overflow
    return number * factor, settings.nonfinite == "step" or math.isfinite(number)


def _with_shards(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of gradients, as sharded tensors where they are sharded."""
    sharded = [
        parameter.grad for parameter in parameters if is_dtensor(parameter) and parameter.grad is not None
    ]
    return sharded + dense_values([parameter for parameter in parameters if not is_dtensor(parameter)])


def divide_and_clip(mean: Mean, settings: UpdateSettings) -> None:
    """Divide the sums and clip the means, in a single pass over the gradients."""
    # As in clip_grad_norm_.
    clip: float | Tensor = 1.0 if settings.clip_norm is None else settings.clip_norm / (mean.norm + 1e-6)
    clip = clip.clamp(max=1.0) if isinstance(clip, Tensor) else min(clip, 1.0)
    multiply(mean.values, clip * mean.factor)
    if settings.clip_value is not None:
        torch._foreach_clamp_min_(mean.values, -settings.clip_value)
        torch._foreach_clamp_max_(mean.values, settings.clip_value)


def step(
    parameters: Sequence[Tensor], wide: Sequence[Wide], settings: UpdateSettings, scale: LossScale | None
) -> None:
    """Step every optimizer once. If one raises, undo its changes (with ``undo_step``) or name them."""
    snapshot = Snapshot.before_step(parameters, settings.optimizers) if settings.undo_step else None
    before = [] if snapshot is not None else versions(parameters, settings.optimizers)
    if wide and not all(map(takes_wide_gradients, settings.optimizers)):
        round_gradients(wide)
        wide = ()
    for optimizer in settings.optimizers if wide else ():
        widen_state(optimizer, wide)
    try:
        decays = isinstance(settings.clear, Decay)
        with WideState() if wide else _NOTHING, _gradients_kept(settings) if decays else _NOTHING:
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


@contextmanager
def _gradients_kept(settings: UpdateSettings) -> Iterator[None]:
    """Copy the gradients that the optimizers receive, and restore them after the step, for ``decay``.

    For example, SGD with ``nesterov=True, foreach=True`` (the default on a GPU) adds its momentum to ``.grad``. The
    copy is made after all hooks, because hooks may still change the gradients that the optimizer receives.
    """
    received: dict[Tensor, Tensor | None] = {}

    def keep(optimizer: Optimizer, *_: object) -> None:
        for parameter in owned_parameters([optimizer]):
            # The hooks run again if a subclass, which may have changed the gradients, calls the step of its base.
            if parameter not in received:
                received[parameter] = None if parameter.grad is None else parameter.grad.clone()

    with ExitStack() as hooks:
        for optimizer in settings.optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                hooks.callback(optimizer.register_step_pre_hook(keep).remove)
            else:  # a wrapper around an optimizer
                keep(optimizer)
        yield
    for parameter, gradient in received.items():
        if gradient is not None:
            parameter.grad = gradient


def clear_gradients(parameters: Sequence[Tensor], clear: Clear) -> None:
    if clear == "none":
        for parameter in parameters:
            parameter.grad = None
        return
    gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if isinstance(clear, Decay):
        multiply(gradients, clear.factor)
    elif gradients:
        torch._foreach_zero_(gradients)


def versions(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> list[int]:
    """Return the version counter of every tensor that a step may change, parameters first.

    In-place writes increase a version.
    """
    tensors = list(parameters)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            if isinstance(state, dict):
                tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return list(map(tensor_version.use, tensors))


def _may_have_changed(parameters: Sequence[Tensor], before: list[int], settings: UpdateSettings) -> bool:
    """Return whether a failed step may have changed anything.

    torch's optimizers increase tensor versions, except in fused kernels; other optimizers may write through
    ``.data``.
    """
    if not all(map(takes_wide_gradients, settings.optimizers)):
        return True
    return versions(parameters, settings.optimizers) != before


def _torn(
    parameters: Sequence[Tensor], before: list[int], settings: UpdateSettings, error: BaseException
) -> str:
    changed = [p for p, version in zip(parameters, before, strict=False) if tensor_version(p) != version]
    what = f"({settings.names(changed)})" if changed else "visibly, and perhaps others"
    return (
        f"update: the optimizer raised {type(error).__name__} in the middle of its step, after changing "
        f"{len(changed)} of {len(parameters)} parameters {what}. Parameters and state may not match. Reload the "
        "last checkpoint. Accumulator(..., undo_step=True) undoes a step that fails."
    )


def _where_nonfinite(parameters: Sequence[Tensor], losses: list[float], settings: UpdateSettings) -> str:
    held = [(p, p.grad) for p in parameters if p.grad is not None]
    bad = [
        p for p, grad in held if not (grad.coalesce().values() if grad.is_sparse else grad).isfinite().all()
    ]
    numbers = [str(number) for number, loss in enumerate(losses, 1) if not math.isfinite(loss)]
    cause = f" Nonfinite losses of this window: number {', '.join(numbers[:5])}." if numbers else ""
    return (
        f"update: the gradient of this window is not finite in {len(bad)} of {len(parameters)} parameters: "
        f"{settings.names(bad)}.{cause} No step was made. Lower the learning rate, clip the "
        "gradient, or pass nonfinite='skip' to skip such windows."
    )


def check_prepared(optimizer: Any) -> None:
    """Raise OptionError for an optimizer that Accelerate has prepared, which might skip or shrink the step."""
    if not optimizer.gradient_state.sync_gradients or getattr(optimizer, "scaler", None) is not None:
        raise OptionError(
            "update: the optimizer was prepared by Accelerate, whose own accumulation or loss scale would skip or "
            "shrink this step. No step was made. Pass torch's own optimizer: gg.Accumulator(optimizer.optimizer)."
        )
