"""The end of a window: from the sum in `.grad` to the step, each thing once and in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradgate.accumulation._clearing import clear_gradients
from gradgate.accumulation._company import Company
from gradgate.accumulation._gradients import (
    add,
    dense_values,
    exact_norm,
    is_part,
    multiply,
    norm_of_parts,
    total_norm,
)
from gradgate.accumulation._loss_scale import LossScale
from gradgate.accumulation._over_ranks import add_over_ranks
from gradgate.accumulation._parameters import named_some
from gradgate.accumulation._precision import (
    Wide,
    WideState,
    round_gradients,
    takes_wide_gradients,
    widen_state,
)
from gradgate.accumulation._settings import Settings
from gradgate.accumulation._signals import uninterrupted
from gradgate.accumulation._slots import Slots
from gradgate.accumulation._snapshot import Snapshot, versions
from gradgate.accumulation._sums import Sums
from gradgate.errors import CountError, GraphError, NonfiniteError, TornStepError
from gradgate.torch_compat import foreach_clamp_max_, foreach_clamp_min_, tensor_version

if TYPE_CHECKING:
    from gradgate.accumulation._update import Update


@torch.no_grad()
def finish(
    update: Update,
    sums: Sums,
    slots: Slots,
    scale: LossScale,
    settings: Settings,
    company: Company,
) -> None:
    """Add over ranks, divide once, unscale, add what is carried, clip, step, clear, schedule.

    Returns without having noted a step where a gradient that is not finite is to be skipped.

    Raises:
        CountError, GraphError, NonfiniteError: there is no gradient to step on.
    """
    parameters = slots.parameters
    engine = company.engine
    if engine is None:
        factor = sums.gather()
    else:
        factor = add_over_ranks(engine, company.meet(sums), sums, parameters, sent=company.sent)
    if factor is None:
        if not update.micro_batch_count and engine is None:
            raise CountError(
                "update: no backward came in this window, so there is nothing to step on. Call "
                "update.backward(loss, count=...) inside the block, or do not enter it."
            )
        raise CountError(
            f"update: every micro-batch of this window has count 0 ({update.micro_batch_count} came), so the mean "
            "gradient is 0/0. Skip this update: do not enter the block for a window without items."
        )
    scale.unscale(settings.optimizers, parameters[0].device)
    values = dense_values(parameters)
    if not values:
        raise GraphError(
            f"update: none of the {len(parameters)} parameters that the optimizer owns received a gradient: "
            f"{named_some(parameters, settings)}. The losses do not depend on them (detached, "
            "frozen, or another model's). Check that the optimizer was made from this model's parameters."
        )
    if slots.carried is not None:
        multiply(values, factor)
        add(parameters, slots.carried)
        values, factor = dense_values(parameters), 1.0
    norm, usable = _measure(parameters, values, factor, settings)
    update._noted_norm(norm)
    if not usable:
        if settings.nonfinite == "raise":
            raise NonfiniteError(_where_nonfinite(parameters, sums, settings))
        scale.overflowed()
        return
    update._noted_gradient(values, factor)
    _divide_and_clip(values, factor, norm, settings)
    with uninterrupted():
        with update._stepping():
            _step(parameters, slots.wide, settings, scale)
        try:
            update._noted_step()
            clear_gradients(parameters, settings.clear)
            if settings.scaler is not None:
                settings.scaler.update()
            for scheduler in settings.schedulers:
                scheduler.step()
        finally:
            # Also if a scheduler raises: the step was made, so the update is as after it.
            update._close()


def _measure(
    parameters: Sequence[Tensor], values: list[Tensor], factor: float, settings: Settings
) -> tuple[float | Tensor, bool]:
    """Return the norm of ``factor`` times the gradients, and whether they may be stepped on.

    Waits for the device unless ``nonfinite="step"``, where nobody asks. Then the norm stays a tensor.
    """
    in_parts = any(is_part(parameter) for parameter in parameters)
    norm = norm_of_parts(parameters) if in_parts else total_norm(values)
    if settings.nonfinite == "step" and isinstance(norm, Tensor):
        return norm * factor, True
    number = float(norm)
    if not math.isfinite(number) and not in_parts:
        number = exact_norm(values)
    return number * factor, settings.nonfinite == "step" or math.isfinite(number)


def _divide_and_clip(values: list[Tensor], factor: float, norm: float | Tensor, settings: Settings) -> None:
    """Turn sums into means and clip them, in one pass over the gradients or, at factor 1, in none.

    The clip is torch's: gradients are scaled by ``min(1, clip_norm / (norm + 1e-6))``, see
    ``torch.nn.utils.clip_grad_norm_``.
    """
    clip: float | Tensor = 1.0
    if settings.clip_norm is not None:
        clip = settings.clip_norm / (norm + 1e-6)
        clip = clip.clamp(max=1.0) if isinstance(clip, Tensor) else min(clip, 1.0)
    multiply(values, clip * factor)
    if settings.clip_value is not None:
        foreach_clamp_min_(values, -settings.clip_value)
        foreach_clamp_max_(values, settings.clip_value)


def _step(parameters: Sequence[Tensor], wide: Sequence[Wide], settings: Settings, scale: LossScale) -> None:
    """Step every optimizer once, or change nothing and raise.

    Raises:
        TornStepError: an optimizer raised after it had changed something, and ``undo_step`` is off.
    """
    snapshot = Snapshot(parameters, settings.optimizers) if settings.undo_step else None
    before = versions(parameters, settings.optimizers) if snapshot is None else {}
    if wide and not all(takes_wide_gradients(one) for one in settings.optimizers):
        round_gradients(wide)
        wide = ()
    for one in settings.optimizers if wide else ():
        widen_state(one, wide)
    try:
        with WideState() if wide else nullcontext():
            for one in settings.optimizers:
                scale.step(one)
    except BaseException as error:
        if snapshot is not None:
            snapshot.restore()
        elif _may_have_changed(parameters, before, settings):
            raise TornStepError(_torn(parameters, before, settings, error)) from error
        raise


def _may_have_changed(parameters: Sequence[Tensor], before: dict[int, int], settings: Settings) -> bool:
    """Say whether a failed step touched anything; of optimizers that may write unnoticed, yes.

    torch's own raise the version of what they write, but for their fused kernels; others may use ``.data``.
    """
    if not all(takes_wide_gradients(one) for one in settings.optimizers):
        return True
    return versions(parameters, settings.optimizers) != before


def _torn(
    parameters: Sequence[Tensor], before: dict[int, int], settings: Settings, error: BaseException
) -> str:
    changed = [p for p in parameters if tensor_version(p) != before.get(id(p))]
    what = f"({named_some(changed, settings)})" if changed else "that are known, and perhaps state"
    return (
        f"update: the optimizer raised {type(error).__name__} in the middle of its step, after changing "
        f"{len(changed)} of {len(parameters)} parameters {what}. They may be neither as before nor as after. "
        "Reload the last checkpoint; Accumulator(..., undo_step=True) keeps a copy during each step and "
        "undoes it."
    )


def _where_nonfinite(parameters: Sequence[Tensor], sums: Sums, settings: Settings) -> str:
    bad = [p for p in parameters if p.grad is not None and not _is_finite(p.grad)]
    losses = [float(loss) for one in sums.by_name.values() for loss in one.losses]
    numbers = [str(number) for number, loss in enumerate(losses, 1) if not math.isfinite(loss)]
    cause = f" Losses that are not finite themselves: number {', '.join(numbers[:5])}." if numbers else ""
    return (
        f"update: the gradient of this window is not finite in {len(bad)} of {len(parameters)} parameters: "
        f"{named_some(bad, settings)}.{cause} Nothing was stepped. Lower the learning rate or clip, "
        "or pass nonfinite='skip' to leave such windows out."
    )


def _is_finite(gradient: Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient  # torch asks dense tensors only
    return bool(values.isfinite().all())
