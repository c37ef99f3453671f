"""Records the optimizer steps and backward passes of a loop through torch's own hooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer


@dataclass
class Record:
    """Steps, backward passes, and the gradient of the first step.

    Attributes:
        gradients: ``.grad`` at the first step, with zeros for None.
        steps: optimizer steps.
        passes: backward passes that reached the parameters before the first step.
        passes_after: later backward passes.
        stale: whether ``.grad`` held gradients when the first backward pass began.
        moved_before: whether parameters had moved in a backward pass before the first step.
        moved: whether parameters had moved when the loop ended.
    """

    gradients: list[Tensor] | None = None
    steps: int = 0
    passes: int = 0
    passes_after: int = 0
    stale: bool = False
    moved_before: bool = False
    moved: bool = False


@contextmanager
def recording(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Iterator[Record]:
    """Record steps and backward passes inside the block."""
    record = Record()
    counts = [0] * len(parameters)  # backward passes that reached each parameter; the maximum is used
    start = [parameter.detach().clone() for parameter in parameters]
    running: FrameType | None = None  # the step that is running, or the last one

    def note_step(stepped: Optimizer) -> None:
        record.steps += 1
        if record.steps > 1:
            return
        # Under a GradScaler, a fused optimizer divides by the scale inside its step.
        scale = getattr(stepped, "grad_scale", None)
        divisor = 1.0 if scale is None else scale
        record.gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.detach() / divisor for p in parameters
        ]

    def before_step(stepped: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal running
        step = sys._getframe(1)
        if _calls(running, step):
            return None  # a subclass calls the step of its base class, which runs the same hooks
        running = step
        # In args, the optimizer itself comes first.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            note_step(stepped)
            return None

        def noted_closure() -> Any:  # a step may run the last backward pass itself, as in Lightning
            loss = closure()
            note_step(stepped)
            return loss

        return args[:1], {**kwargs, "closure": noted_closure}

    def before_pass(index: int, parameter: Tensor, gradient: Tensor) -> None:
        if record.passes == 0 and parameter.grad is not None and bool(parameter.grad.any()):
            record.stale = True
        if record.steps == 0 and not torch.equal(parameter, start[index]):
            record.moved_before = True
        counts[index] += 1
        if record.steps == 0:
            record.passes = max(counts)
        else:
            record.passes_after = max(counts) - record.passes

    handles: list[Any] = [optimizer.register_step_pre_hook(before_step)]
    for index, parameter in enumerate(parameters):
        handles.append(parameter.register_hook(partial(before_pass, index, parameter)))
    try:
        yield record
        record.moved = not all(map(torch.equal, parameters, start))
    finally:
        running = None  # a frame keeps its variables alive
        for handle in handles:
            handle.remove()


def _calls(outer: FrameType | None, inner: FrameType | None) -> bool:
    """Return whether an outer frame is still running, and has called the inner one."""
    while outer is not None and inner is not None and inner is not outer:
        inner = inner.f_back
    return outer is not None and inner is outer


@contextmanager
def autocast_types(parameters: Sequence[Tensor]) -> Iterator[set[torch.dtype]]:
    """Collect the autocast dtypes in which modules run inside the block."""
    devices = {parameter.device.type for parameter in parameters}
    seen: set[torch.dtype] = set()

    def note(module: nn.Module, args: Any) -> None:
        seen.update(torch.get_autocast_dtype(kind) for kind in devices if torch.is_autocast_enabled(kind))

    handle = register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()
