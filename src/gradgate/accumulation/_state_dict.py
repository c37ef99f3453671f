"""Saves, loads and copies the state of an accumulator, in one process or with several ranks."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradgate.accumulation._gradients import Leftovers
from gradgate.accumulation._open_window import OpenWindow, TrainingState, watch_optimizers
from gradgate.accumulation._precision import has_wide_state, sum_dtype
from gradgate.accumulation._settings import Decay, UpdateSettings
from gradgate.batch_size import SmallBatch, bind_noise_scale, pooled
from gradgate.errors import StateError, UpdateError

Self = TypeVar("Self", bound="Checkpointed")

_FORMAT = 2
_KEYS = {"shapes", "window", "carried", "zeros", "samples_that_fit", "noise_scale", "wide_state"}


class Checkpointed:
    """Adds saving, loading and deep copies to an accumulator."""

    _state: TrainingState

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """Copy an accumulator, together with its model and its optimizer."""
        state = self._state
        if state.open_update is not None:
            raise UpdateError(
                "deepcopy: an update is open. Copy the accumulator before the block or after it."
            )
        memo[id(state.leftovers)] = Leftovers()
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        twin = copied._state
        parameters = twin.settings.parameters
        for parameter, original in zip(parameters, state.settings.parameters, strict=True):
            # What decay carries over, or zeros: torch copies a parameter without its gradient.
            if (gradient := original.grad) is not None and state.leftovers.holds(original, gradient):
                parameter.grad_dtype = gradient.dtype
                parameter.grad = gradient.detach().clone()
        twin.leftovers.remember(parameters)
        if twin.noise_scale is not None:
            bind_noise_scale(twin.noise_scale, twin)
        watch_optimizers(twin)
        return copied

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume, including an unfinished window.

        Tensors are copies. The state holds only tensors, numbers, strings and containers, so that
        ``torch.load(..., weights_only=True)`` reads it. It does not include the model, optimizer, scheduler, scaler
        and random state; save these separately. Inside a window, call this after the last backward of a
        micro-batch.
        """
        state, settings, update = self._state, self._state.settings, self._state.open_update
        parameters = settings.parameters
        window, gradients = state.unfinished, [parameter.grad for parameter in parameters]
        if update is not None:
            window, gradients = _unfinished(update), update._slots.before
        decays = isinstance(settings.clear, Decay) and (
            update is None or any(g is not None for g in gradients)
        )
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

    def state_by_rank(self) -> dict[str, Any]:
        """Return :meth:`state_dict` for a checkpoint that all ranks write together.

        For ``torch.distributed.checkpoint.save({"accumulator": accumulator.state_by_rank(), ...}, ...)``:
        each rank saves its part of an unfinished window under its own key.

        Raises:
            StateError: under ``fully_shard``, a window is unfinished.
        """
        rank, ranks = self._state.ranks.position(self._state.settings)
        update = self._state.open_update
        if update is not None and update._coordinator.sharded:
            raise StateError(
                "state_by_rank: under fully_shard, torch holds the sum of an unfinished window, which cannot be "
                "read. Save between two windows."
            )
        file = io.BytesIO()  # as bytes, because the ranks that load it do not know its size
        torch.save(self.state_dict(), file)
        return {"ranks": ranks, f"rank {rank}": file.getvalue()}

    def load_checkpoint(self, checkpoint_id: Any, key: str = "accumulator") -> None:
        """Load the state that :meth:`state_by_rank` saved in a ``torch.distributed`` checkpoint.

        With the same number of ranks, each rank continues its own part of an unfinished window, bit for bit, if you
        give it the same window. With a different number of ranks, the parts are added and distributed over the new
        ranks; give each rank its share of the remaining micro-batches. The update then differs only by rounding.

        Args:
            checkpoint_id: the folder given to ``torch.distributed.checkpoint.save``.
            key: the key of the accumulator in the checkpoint.

        Raises:
            StateError: the checkpoint has no such key, or belongs to other parameters.
            UpdateError, GradientError: the same as for :meth:`load_state_dict`.
        """
        rank, ranks = self._state.ranks.position(self._state.settings)
        self.load_state_dict(_read(checkpoint_id, key, rank, ranks))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. If it has an unfinished window, the next update continues it.

        Create the accumulator before calling ``optimizer.load_state_dict(...)``: torch would round the loaded
        moments of 16-bit parameters, and the accumulator prevents that. Give the next update the same
        micro-batches; it skips those already in the sum. The resulting parameters are then, bit for bit, those of
        an uninterrupted run.

        Raises:
            StateError: the state belongs to other parameters or another version; nothing is changed.
            UpdateError: an update is open.
            GradientError: decayed gradients would overwrite existing gradients.
        """
        kept = self._state
        if kept.open_update is not None:
            raise UpdateError("load_state_dict: an update is open. Load before the block or after it.")
        settings, parameters = kept.settings, kept.settings.parameters
        _check_state(state, parameters, settings)
        carried, zeros = state["carried"], state["zeros"]
        if carried is not None or (zeros is not None and settings.clear == "zero"):
            kept.leftovers.check(parameters, settings)
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
        kept.leftovers.remember(parameters)
        kept.unfinished = state["window"]
        kept.samples_that_fit = state["samples_that_fit"]
        if kept.noise_scale is not None and state["noise_scale"] is not None:
            kept.noise_scale.load_state_dict(state["noise_scale"])


def _unfinished(window: OpenWindow) -> dict[str, Any]:
    """Return a copy of a window so far, in plain containers."""
    if window._shared.batch_norms.pooled:
        raise UpdateError(
            "state_dict: with batch_norm='window', the statistics that an open window has pooled cannot be saved. "
            "Save between two windows."
        )
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
    for saved in window["sums"] if window is not None else ():
        for index, (gradient, parameter) in enumerate(zip(saved["gradients"], parameters, strict=False)):
            wanted = sum_dtype(parameter, settings.accumulate_dtype)
            if gradient is not None and gradient.dtype != wanted:
                raise StateError(
                    f"load_state_dict: the unfinished window holds {gradient.dtype} sums for parameter {index}, "
                    f"but this accumulator sums in {wanted}. Create the accumulator with the same accumulate_dtype "
                    "as when it was saved."
                )
    scaled = window is not None and window["scale"] is not None
    # A window whose micro-batches were all empty has run no backward pass, so it has no scale yet.
    begun = window is not None and any(each["unit"] is not None for each in window["sums"])
    if begun and scaled != (settings.scaler is not None):
        raise StateError(
            "load_state_dict: the unfinished window was saved "
            f"{'with' if scaled else 'without'} a GradScaler, but this accumulator has "
            f"{'none' if scaled else 'one'}. Create the accumulator with the same settings as when it was saved."
        )


def _read(checkpoint_id: Any, key: str, rank: int, ranks: int) -> dict[str, Any]:
    """Return this rank's saved state, or its share of all states if the number of ranks changed.

    Raises:
        StateError: the checkpoint holds no state under this key.
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
    mine = range(rank, saved, ranks) if saved != ranks else [rank]
    wanted: dict[str, Any] = {key: {f"rank {number}": b"" for number in mine or [0]}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about reading in a single process
        load(wanted, checkpoint_id=checkpoint_id, no_dist=True)
    files = [io.BytesIO(wanted[key][f"rank {number}"]) for number in mine or [0]]
    states: list[dict[str, Any]] = [torch.load(file, weights_only=True) for file in files]
    if saved == ranks:
        return states[0]
    return _merged(states if mine else [], states[0])


def _merged(states: Sequence[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any]:
    """Return the unfinished windows of some ranks as one window, with their sums added.

    Values that all ranks share are taken from the first rank. Micro-batches are counted from zero, because a
    different number of ranks splits the rest of the window differently.
    """
    windows = [state["window"] for state in states if state["window"] is not None]
    if like["window"] is None:
        return like
    names = dict.fromkeys(saved["name"] for window in windows for saved in window["sums"])
    sums = [
        _added([saved for window in windows for saved in window["sums"] if saved["name"] == name])
        for name in names
    ]
    firsts = [SmallBatch(*window["first"]) for window in windows if window["first"] is not None]
    first = list(pooled(firsts)) if firsts else None
    whole = {"micro_batches": 0, "scale": like["window"]["scale"], "sums": sums, "first": first}
    return {**like, "window": whole}


def _added(sums: Sequence[dict[str, Any]]) -> dict[str, Any]:
    unit = max((each["unit"] for each in sums if each["unit"] is not None), default=None)
    gradients: list[Tensor | None] = [None] * len(sums[0]["gradients"])
    for each in sums:
        for index, gradient in enumerate(each["gradients"]):
            if gradient is not None and unit is not None:
                part = gradient * (each["unit"] / unit)
                before = gradients[index]
                gradients[index] = part if before is None else before + part
    joined = {
        key: [item for each in sums for item in each[key]] for key in ("counts", "reductions", "losses")
    }
    known = sum(each["known"] for each in sums)
    return {**sums[0], **joined, "unit": unit, "known": known, "gradients": gradients}
