"""``zero_grad`` on optimizers and modules, and clipping."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import is_sharded
from gradgate.checker.recording._tracing import tracing
from gradgate.events import Cleared, Clipped, Ids


class Clearing:
    """Watches zero_grad, clip_grad_norm_ and clip_grad_value_."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients

    def install(self) -> None:
        """Stand around the classes' methods and the functions, under every name that they are called by."""
        patches = self._recorder.patches
        patches.wrap(torch.optim.Optimizer, "zero_grad", self._around_zero_grad)
        patches.wrap(nn.Module, "zero_grad", self._around_zero_grad)
        for name, around in (
            ("clip_grad_norm_", self._around_norm),
            ("clip_grad_value_", self._around_value),
        ):
            for owner in (clip_grad, nn.utils):
                patches.wrap(owner, name, around)

    def _around_zero_grad(self, original: Any, owner: Any, set_to_none: bool = True) -> Any:
        recorder = self._recorder
        if not recorder.active or recorder.quiet or tracing():
            return original(owner, set_to_none)
        ids: Ids = frozenset()
        with recorder.working():
            self._gradients.compare()
            if isinstance(owner, nn.Module):
                tensors = list(owner.parameters())
            else:
                tensors = [tensor for group in owner.param_groups for tensor in group["params"]]
            ids = recorder.ids(tensors)
            recorder.add(Cleared(recorder.site(), ids, self._gradients.full(ids), bool(set_to_none)))
        try:
            with recorder.library(), recorder.timed("clear"):
                return original(owner, set_to_none)
        finally:
            with recorder.working():
                self._gradients.note(ids)

    def _around_norm(self, original: Any, parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.active or recorder.quiet or tracing():
            return original(parameters, max_norm, *args, **kwargs)
        tensors, handed_on = _gone_through_twice(parameters)
        ids: Ids = frozenset()
        full: Ids = frozenset()
        with recorder.working():
            self._gradients.compare()
            ids = recorder.ids(tensors)
            full = self._not_zero(tensors)
        with recorder.library(), recorder.timed("clip"):
            norm = original(handed_on, max_norm, *args, **kwargs)
        with recorder.working():
            asked = recorder.looking and isinstance(norm, Tensor) and not is_sharded(norm)
            seen = float(norm) if asked else None
            recorder.add(Clipped(recorder.site(), ids, full, len(tensors), seen, float(max_norm)))
            self._gradients.note(ids)
        return norm

    def _around_value(
        self, original: Any, parameters: Any, clip_value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        recorder = self._recorder
        if not recorder.active or recorder.quiet or tracing():
            return original(parameters, clip_value, *args, **kwargs)
        tensors, handed_on = _gone_through_twice(parameters)
        ids: Ids = frozenset()
        with recorder.working():
            self._gradients.compare()
            ids = recorder.ids(tensors)
            full = self._not_zero(tensors)
            recorder.add(Clipped(recorder.site(), ids, full, len(tensors), None, float(clip_value)))
        with recorder.library(), recorder.timed("clip"):
            result = original(handed_on, clip_value, *args, **kwargs)
        with recorder.working():
            self._gradients.note(ids)
        return result

    def _not_zero(self, tensors: list[Tensor]) -> frozenset[int]:
        recorder = self._recorder
        full = [tensor for tensor in tensors if tensor.grad is not None]
        if recorder.looking:
            full = [tensor for tensor in full if is_sharded(tensor) or _any(tensor.grad)]
        return recorder.ids(full)


def _gone_through_twice(parameters: Any) -> tuple[list[Tensor], Any]:
    """Return tensors as a list, and again as they were given: torch warns of a generator that is exhausted."""
    if isinstance(parameters, Tensor):
        return [parameters], parameters
    tensors = list(parameters)
    again = (one for one in tensors) if isinstance(parameters, types.GeneratorType) else tensors
    return tensors, again


def _any(gradient: Any) -> bool:
    return gradient.is_sparse or bool(gradient.detach().any())
