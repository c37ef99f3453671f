"""What lies in memory whatever the micro-batch: parameters, gradients, the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.planning._budget import written
from gradgate.torch_compat import fake_tensors, storage_key


@dataclass(frozen=True)
class Standing:
    """Bytes that do not depend on the cut.

    Attributes:
        parameter_bytes: of all parameters and buffers that the loss function used.
        gradient_bytes: of the gradients; those of 16-bit parameters are added up in float32.
        state_bytes: of the optimizer; None: not known.
        there_bytes: of all this, what lies in memory already.
    """

    parameter_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int | None = None
    there_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.parameter_bytes + self.gradient_bytes + (self.state_bytes or 0)

    def __str__(self) -> str:
        state = f", {written(self.state_bytes)} of optimizer state" if self.state_bytes else ""
        return f"{written(self.parameter_bytes)} of parameters, {written(self.gradient_bytes)} of gradients{state}"

    def beside(self, optimizer: Optimizer | None) -> Standing:
        """Return this with the state of an optimizer."""
        state, there = _state_bytes(optimizer)
        return replace(self, state_bytes=state, there_bytes=self.there_bytes + there)


def standing(parameters: Sequence[Tensor], others: Sequence[Tensor]) -> Standing:
    """Return what stands beside a pass that used these parameters and other tensors."""
    used = _nbytes([*parameters, *others])
    gradients = _nbytes(tensor.grad for tensor in parameters if tensor.grad is not None)
    return Standing(used, sum(map(_gradient_bytes, parameters)), None, used + gradients)


def _gradient_bytes(parameter: Tensor) -> int:
    wide = parameter.dtype in (torch.float16, torch.bfloat16)
    return parameter.numel() * (4 if wide else parameter.element_size())


def _nbytes(tensors: Iterable[Tensor]) -> int:
    storages = {}
    for tensor in tensors:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            storages[storage_key(storage)] = storage.nbytes()
    return sum(storages.values())


def _state_bytes(optimizer: Optimizer | None) -> tuple[int | None, int]:
    """Return the bytes of an optimizer's state, and those that are there: before its first step it has none."""
    if optimizer is None:
        return None, 0
    there = _nbytes(
        value for state in optimizer.state.values() for value in state.values() if _is_tensor(value)
    )
    if there:
        return there, there
    with suppress(Exception):
        return _state_to_come(optimizer), 0
    return None, 0


def _state_to_come(optimizer: Optimizer) -> int:
    """Let an optimizer of the same kind step fake parameters."""
    mode = fake_tensors()[1]()
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        fakes = [
            mode.from_tensor(torch.detach(one)).requires_grad_(one.requires_grad) for one in group["params"]
        ]
        groups.append({**group, "params": fakes})
    with mode:
        for fake in (one for group in groups for one in group["params"] if one.requires_grad):
            fake.grad = torch.empty_like(fake)
        stand_in: Any = type(optimizer)(groups)  # type: ignore[call-arg]
        stand_in.step()
    return _nbytes(one for state in stand_in.state.values() for one in state.values() if _is_tensor(one))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
