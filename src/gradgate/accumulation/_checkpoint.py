"""Saves, loads and copies the state of an accumulator, in one process or with several ranks."""

from __future__ import annotations

import io
import warnings
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
    state.unfinished = saved["window"]
    state.samples_that_fit = saved["samples_that_fit"]
    if state.noise_scale is not None and saved["noise_scale"] is not None:
        state.noise_scale.load_state_dict(saved["noise_scale"])


def state_in_bytes(state: TrainingState) -> dict[str, Any]:
    """Return what :meth:`Accumulator.state_by_rank` documents."""
    rank, ranks = state.ranks.position(state.settings)
    update = state.open_update
    if update is not None and update._coordinator.sharded:
        raise StateError(
            "state_by_rank: under fully_shard, torch holds the sum of an unfinished window, which cannot be "
            "read. Save between two windows."
        )
    file = io.BytesIO()  # as bytes, because the ranks that load it do not know its size
    torch.save(state_of(state), file)
    return {"ranks": ranks, f"rank {rank}": file.getvalue()}


def _unfinished(window: Update) -> dict[str, Any]:
    """Return a copy of a window so far, in plain containers."""
    window._counter.refuse_idle("state_dict")
    scale, first = window._scale, window._sums.first()
    return {
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


def read_checkpoint(checkpoint_id: Any, key: str, rank: int, ranks: int) -> dict[str, Any]:
    """Return this rank's saved state.

    Raises:
        StateError: the checkpoint holds no state under this key, or an unfinished window of more or fewer ranks.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    known = FileSystemReader(checkpoint_id).read_metadata().state_dict_metadata
    saved = sum(name.startswith(f"{key}.rank ") for name in known)
    if not saved:
        raise StateError(
            f"load_checkpoint: the checkpoint holds no accumulator under {key!r}. Save it with that key: "
            f"dcp.save({{{key!r}: accumulator.state_by_rank(), ...}}, checkpoint_id=...)."
        )
    wanted: dict[str, Any] = {key: {f"rank {rank if saved == ranks else 0}": b""}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about reading in a single process
        load(wanted, checkpoint_id=checkpoint_id, no_dist=True)
    (file,) = wanted[key].values()
    state: dict[str, Any] = torch.load(io.BytesIO(file), weights_only=True)
    if saved != ranks and state["window"] is not None:
        raise StateError(
            f"load_checkpoint: the checkpoint was saved within a window of {saved} ranks, and its sums cannot be "
            f"distributed over {ranks}. Load it with {saved} ranks and finish that window, or save between windows."
        )
    return state
