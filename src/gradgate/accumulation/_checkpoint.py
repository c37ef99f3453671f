"""Saves and loads the state of an accumulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._precision import has_wide_state
from gradgate.accumulation._settings import Decay, UpdateSettings
from gradgate.accumulation._sums import Stamps
from gradgate.accumulation._window import TrainingState, Update, check_left
from gradgate.errors import StateError

_FORMAT = 3
_KEYS = {"shapes", "window", "carried", "zeros", "samples_that_fit", "noise_scale", "wide_state"}


def state_of(state: TrainingState) -> dict[str, Any]:
    """Return what :meth:`Accumulator.state_dict` documents."""
    settings, update = state.settings, state.open_update
    parameters = settings.parameters
    window, gradients = state.unfinished, [parameter.grad for parameter in parameters]
    if update is not None:
        window, gradients = _unfinished(update), update._saved.before
    decays = isinstance(settings.clear, Decay) and (update is None or any(g is not None for g in gradients))
    return {
        "format": _FORMAT,
        "shapes": [list(parameter.shape) for parameter in parameters],
        "window": window,
        "carried": [None if g is None else g.detach().clone() for g in gradients] if decays else None,
        # Which gradients are zero rather than None, because an optimizer also steps on zeros.
        "zeros": [g is not None for g in gradients] if settings.clear == "zero" else None,
        "samples_that_fit": state.samples_that_fit,
        "noise_scale": None if state.noise_scale is None else state.noise_scale.state_dict(),
        "wide_state": has_wide_state(settings.optimizers),
    }


def load_state(state: TrainingState, saved: dict[str, Any]) -> None:
    """Load what :func:`state_of` returned, or raise and change nothing."""
    settings, parameters = state.settings, state.settings.parameters
    _check_state(saved, parameters, settings)
    window = saved["window"]
    if window is not None and window["rank"] != (rank := list(state.ranks.position(settings))):
        raise StateError(
            "load_state_dict: the unfinished window was saved by rank {} of {}, but this is rank {} of {}, and its "
            "sums cannot be distributed anew. Load it on as many ranks, each with its own state, and finish that "
            "window, or save between windows.".format(*window["rank"], *rank)
        )
    carried, zeros = saved["carried"], saved["zeros"]
    if carried is not None or (zeros is not None and settings.clear == "zero"):
        check_left(parameters, settings, state.left)
    if carried is not None:
        for parameter, gradient in zip(parameters, carried, strict=True):
            parameter.grad = None
            if gradient is not None:
                parameter.grad_dtype = gradient.dtype
                parameter.grad = gradient.to(parameter.device, copy=True)
    elif zeros is not None and settings.clear == "zero":
        for parameter, filled in zip(parameters, zeros, strict=True):
            if filled != (parameter.grad is not None):
                dtype = parameter.grad_dtype
                parameter.grad = torch.zeros_like(parameter, dtype=dtype) if filled else None
    state.left = Stamps(parameters, earlier=state.left)
    state.unfinished = window
    state.samples_that_fit = saved["samples_that_fit"]
    if state.noise_scale is not None and saved["noise_scale"] is not None:
        state.noise_scale.load_state_dict(saved["noise_scale"])


def _unfinished(window: Update) -> dict[str, Any]:
    """Return a copy of a window so far, in plain containers."""
    window._counter.refuse_idle("state_dict")
    coordinator, scale, first = window._coordinator, window._scale, window._sums.first()
    if coordinator.sharded:
        raise StateError(
            "state_dict: under fully_shard, torch holds the sum of an unfinished window, which cannot be read. "
            "Save between two windows."
        )
    return {
        "rank": [coordinator.rank, coordinator.count],
        "micro_batches": window._counter.done,
        "scale": None if scale is None else scale.value(),
        "sums": window._sums.state(),
        "first": None if first is None else list(first),
    }


def _check_state(state: dict[str, Any], parameters: Sequence[Tensor], settings: UpdateSettings) -> None:
    """Raise StateError unless the state fits the parameters and settings."""
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found != _FORMAT or not state.keys() >= _KEYS:
        raise StateError(
            f"load_state_dict: format is {found!r}, but this version reads format {_FORMAT}. Its keys are "
            f"{', '.join(map(repr, sorted(_KEYS)))}. Pass the result of Accumulator.state_dict()."
        )
    shapes = [list(parameter.shape) for parameter in parameters]
    if state["shapes"] != shapes:
        differing = [i for i, (a, b) in enumerate(zip(state["shapes"], shapes, strict=False)) if a != b]
        first = f"; the first that differs is parameter {differing[0]}" if differing else ""
        raise StateError(
            f"load_state_dict: the state was saved for other parameters ({len(state['shapes'])} saved, "
            f"{len(shapes)} in the optimizer{first}). Create the optimizer with the same parameters, in the same "
            "order, as when the state was saved."
        )
    if state["carried"] is not None and not isinstance(settings.clear, Decay):
        raise StateError(
            f"load_state_dict: the state holds decayed gradients, but clear is {settings.clear!r}. Create the "
            "accumulator with the clear=gradgate.decay(...) that it was saved with."
        )
    if state["wide_state"] and not has_wide_state(settings.optimizers):
        raise StateError(
            "load_state_dict: the optimizer's moments were wider than its parameters when the state was saved, but "
            "torch rounded them on loading. Create the accumulator first, then call "
            "optimizer.load_state_dict(...), then accumulator.load_state_dict(...)."
        )
    window = state["window"]
    scaled = window is not None and window["scale"] is not None
    # A window whose micro-batches were all empty has run no backward pass, so it has no scale yet.
    begun = window is not None and any(each["unit"] is not None for each in window["sums"])
    if begun and scaled != (settings.scaler is not None):
        raise StateError(
            "load_state_dict: the unfinished window was saved "
            f"{'with' if scaled else 'without'} a GradScaler, but this accumulator has "
            f"{'none' if scaled else 'one'}. Create the accumulator with the same settings as when it was saved."
        )
