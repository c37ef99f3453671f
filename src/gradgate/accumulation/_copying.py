"""Hooks of an accumulator on its optimizers, and deep copies, which need hooks and gradients of their own."""

from __future__ import annotations

import copy
import weakref
from typing import Any, TypeVar

from gradgate.accumulation._gradients import Leftovers
from gradgate.accumulation._open_window import TrainingState, refuse_steps_inside
from gradgate.accumulation._precision import keep_loaded_state_wide
from gradgate.accumulation._settings import in_use
from gradgate.accumulation.batch_size import bind_noise_scale
from gradgate.errors import UpdateError

Self = TypeVar("Self", bound="Copyable")


def watch_optimizers(state: TrainingState) -> None:
    """Refuse manual steps inside a window, and keep loaded moments wide, as long as the state lives."""
    in_use.add(state.settings.models)
    for optimizer in state.settings.optimizers:
        refusal = refuse_steps_inside(optimizer, state)
        wide = keep_loaded_state_wide(optimizer, state.settings.accumulate_dtype) if refusal else ()
        for handle in (*refusal, *wide):
            weakref.finalize(state, handle.remove)  # an update may outlive the accumulator


class Copyable:
    """Deep copies of an accumulator, to be made together with its model and its optimizer."""

    _state: TrainingState

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
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
