"""The settings of an accumulator, checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gradgate.accumulation._clearing import Clear, checked_clear
from gradgate.accumulation._models import Models
from gradgate.errors import OptionError

Nonfinite: TypeAlias = Literal["raise", "skip", "step"]


@dataclass(frozen=True)
class Settings:
    """What happens to each window's gradient, in the order in which it happens."""

    optimizers: tuple[Optimizer, ...]
    models: Models
    accumulate_dtype: torch.dtype | None
    scaler: GradScaler | None
    clip_norm: float | None
    clip_value: float | None
    nonfinite: Nonfinite
    undo_step: bool
    schedulers: tuple[Any, ...]
    clear: Clear


def checked_settings(
    optimizers: tuple[Optimizer, ...],
    models: Models,
    *,
    accumulate_dtype: torch.dtype | None,
    scaler: GradScaler | None,
    clip_norm: float | None,
    clip_value: float | None,
    nonfinite: Nonfinite | None,
    undo_step: bool,
    scheduler: Any,
    clear: Clear,
) -> Settings:
    """Return the settings, or raise OptionError for one that cannot be used."""
    for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if limit is not None and not 0 < limit < math.inf:
            raise OptionError(
                f"Accumulator: {name} is {limit}, it must be positive and finite. Leave it out to clip nothing."
            )
    if clip_norm is not None and clip_value is not None:
        raise OptionError(
            f"Accumulator: both clip_norm={clip_norm} and clip_value={clip_value} are given; a gradient is "
            "clipped once. Choose clip_norm, which keeps the direction, or clip_value."
        )
    if accumulate_dtype is not None and not accumulate_dtype.is_floating_point:
        raise OptionError(
            f"Accumulator: accumulate_dtype is {accumulate_dtype}; sums of gradients need a floating type, "
            "such as torch.float32."
        )
    if scaler is not None and accumulate_dtype == torch.float16:
        raise OptionError(
            "Accumulator: accumulate_dtype=torch.float16 together with a GradScaler, which refuses to "
            "unscale float16 gradients. Leave accumulate_dtype out: sums are then kept in float32."
        )
    if scaler is not None and not scaler.is_enabled():
        scaler = None
    if nonfinite is None:
        # With a scaler an overflow is the ordinary sign that its scale is too large.
        nonfinite = "raise" if scaler is None else "skip"
    if nonfinite not in ("raise", "skip", "step"):
        raise OptionError(f"Accumulator: nonfinite is {nonfinite!r}; it is 'raise', 'skip' or 'step'.")
    if nonfinite == "step" and scaler is not None:
        raise OptionError(
            "Accumulator: nonfinite='step' together with a GradScaler, which never steps on an overflow. "
            "Use nonfinite='skip', or leave the scaler out."
        )
    return Settings(
        optimizers=optimizers,
        models=models,
        accumulate_dtype=accumulate_dtype,
        scaler=scaler,
        clip_norm=clip_norm,
        clip_value=clip_value,
        nonfinite=nonfinite,
        undo_step=undo_step,
        schedulers=_checked_schedulers(scheduler),
        clear=checked_clear(clear),
    )


def _checked_schedulers(scheduler: Any) -> tuple[Any, ...]:
    if scheduler is None:
        return ()
    schedulers = tuple(scheduler) if isinstance(scheduler, Sequence) else (scheduler,)
    for one in schedulers:
        if isinstance(one, ReduceLROnPlateau):
            raise OptionError(
                "Accumulator: ReduceLROnPlateau steps on a validation result, not on an update. Leave it out "
                "here and call scheduler.step(metric) after each validation."
            )
        if not callable(getattr(one, "step", None)):
            raise OptionError(
                f"Accumulator: {type(one).__name__} is no learning-rate scheduler (it has no step). Pass "
                "one of torch.optim.lr_scheduler, or several in a list."
            )
    return schedulers
