"""The saved form of an accumulator: plain containers, checked before anything is taken from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradgate.accumulation._clearing import Decay
from gradgate.accumulation._precision import has_wide_state, sum_dtype
from gradgate.accumulation._settings import Settings
from gradgate.errors import StateError

_FORMAT = 1
_KEYS = {"shapes", "window", "carried", "samples_that_fit", "wide_state"}


def plain_state(
    parameters: Sequence[Tensor],
    window: dict[str, Any] | None,
    carried: Sequence[Tensor | None] | None,
    zeros: list[bool] | None,
    samples_that_fit: int | None,
    wide_state: bool,
) -> dict[str, Any]:
    """Return the saved form. ``carried`` are the decayed gradients, which are copied here.

    ``zeros`` says which gradients are zeros that ``clear="zero"`` left: an optimizer steps on them.
    """
    return {
        "format": _FORMAT,
        "shapes": [list(parameter.shape) for parameter in parameters],
        "window": window,
        "carried": None if carried is None else [None if g is None else g.detach().clone() for g in carried],
        "zeros": zeros,
        "samples_that_fit": samples_that_fit,
        "wide_state": wide_state,
    }


def checked_state(state: dict[str, Any], parameters: Sequence[Tensor], settings: Settings) -> None:
    """Raise StateError unless the state fits the parameters and settings."""
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found != _FORMAT or not state.keys() >= _KEYS:
        raise StateError(
            f"load_state_dict: format is {found!r}, this version reads {_FORMAT}, with {', '.join(sorted(_KEYS))}. "
            "Pass what Accumulator.state_dict() returned."
        )
    shapes = [list(parameter.shape) for parameter in parameters]
    if state["shapes"] != shapes:
        differing = [i for i, (a, b) in enumerate(zip(state["shapes"], shapes, strict=False)) if a != b]
        first = f"; the first that differs is parameter {differing[0]}" if differing else ""
        raise StateError(
            f"load_state_dict: the state holds {len(state['shapes'])} parameters, the optimizer {len(shapes)}"
            f"{first}. Make the optimizer over the same parameters in the same order as when it was saved."
        )
    if state["carried"] is not None and not isinstance(settings.clear, Decay):
        raise StateError(
            f"load_state_dict: the state carries decayed gradients, but clear is {settings.clear!r}. Make the "
            "accumulator with the clear=gradgate.decay(...) that it was saved with."
        )
    if state["wide_state"] and not has_wide_state(settings.optimizers):
        raise StateError(
            "load_state_dict: the optimizer's moments were wider than its parameters when this was saved, and are "
            "not now: torch rounds them when it loads. Make the accumulator first, then call "
            "optimizer.load_state_dict(...), then this."
        )
    _check_types(state["window"], parameters, settings)
    scaled = state["window"] is not None and state["window"]["scale"] is not None
    # A window whose micro-batches were all empty has run no backward pass, so it has no scale yet.
    begun = state["window"] is not None and any(each["unit"] is not None for each in state["window"]["sums"])
    if begun and scaled != (settings.scaler is not None):
        raise StateError(
            "load_state_dict: the unfinished window was saved "
            f"{'with' if scaled else 'without'} a GradScaler, this accumulator has {'none' if scaled else 'one'}. "
            "Make it as it was when it was saved."
        )


def _check_types(window: dict[str, Any] | None, parameters: Sequence[Tensor], settings: Settings) -> None:
    """Raise StateError if sums were saved in another type than this accumulator adds in."""
    for saved in window["sums"] if window is not None else ():
        for place, (gradient, parameter) in enumerate(zip(saved["gradients"], parameters, strict=False)):
            wanted = sum_dtype(parameter, settings.accumulate_dtype)
            if gradient is not None and gradient.dtype != wanted:
                raise StateError(
                    f"load_state_dict: the unfinished window holds {gradient.dtype} sums for parameter {place}, "
                    f"this accumulator adds in {wanted}. Give it the accumulate_dtype that it was saved with."
                )
