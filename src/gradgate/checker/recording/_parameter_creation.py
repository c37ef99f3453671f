"""How parameters come about, and the hooks that they are given."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.checker.recording._cuts import Cuts
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._tracing import tracing


class Births:
    """Watches nn.Parameter's constructor and Tensor.register_hook."""

    def __init__(self, recorder: Recorder, steps: Steps, cuts: Cuts) -> None:
        self._recorder = recorder
        self._steps = steps
        self._cuts = cuts

    def install(self) -> None:
        """Stand around the two."""
        patches = self._recorder.patches
        patches.wrap(nn.Parameter, "__new__", self._around_new)
        patches.wrap(Tensor, "register_hook", self._around_register)

    def _around_new(self, original: Any, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        recorder = self._recorder
        parameter = original(cls, data, requires_grad)
        if recorder.active and not tracing() and isinstance(parameter, Tensor):
            with recorder.working():
                site = recorder.site()
                if isinstance(data, Tensor) and data.grad_fn is not None and recorder.looking:
                    self._cuts.cut(data, "Parameter")
                copied = _in_deepcopy()
                if recorder.backwards:
                    recorder.look_again()
                recorder.parameters.created(parameter, site, recorder.journal.count, copied)
        return parameter

    def _around_register(self, original: Any, tensor: Tensor, hook: Any) -> Any:
        recorder = self._recorder
        if tracing() or not recorder.active:
            return original(tensor, hook)
        number: int | None = None
        with recorder.working():
            number = recorder.parameters.number(tensor) if tensor.is_leaf else None
        if number is None:
            return original(tensor, hook)

        def told(gradient: Tensor) -> Any:
            if not recorder.looking or not recorder.active:
                return hook(gradient)
            before: Tensor | None = None
            with recorder.working():
                before = _full_rows(gradient)
            result = hook(gradient)
            with recorder.working():
                after = _full_rows(gradient if result is None else result)
                if before is not None and after is not None and before.shape == after.shape:
                    gone = before & ~after
                    known = self._steps.masked.get(number)
                    self._steps.masked[number] = gone if known is None else gone | known
            return result

        return original(tensor, functools.wraps(hook)(told) if hasattr(hook, "__name__") else told)


@torch.no_grad()
def _full_rows(gradient: Tensor) -> Tensor | None:
    """Return which rows of a gradient are not all zero; None where it has no rows."""
    if gradient.is_sparse or not gradient.dim():
        return None
    return (gradient != 0).reshape(len(gradient), -1).any(1)


def _in_deepcopy() -> bool:
    frame = sys._getframe(3)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_name == "__deepcopy__" or frame.f_code.co_name == "deepcopy":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
