"""Measures free memory, and the memory that stays allocated between passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.byte_sizes import format_bytes
from gradgate.errors import OptionError
from gradgate.torch_compat import fake_tensors, storage_key

_CPU = torch.device("cpu")
FREE_MARGIN = 0.1  # share of the free memory that stays unused if no budget is given


def free_bytes(device: torch.device) -> int:
    """Return how much memory of a device this process can still use, including torch's cache.

    Raises:
        OptionError: the device does not report its free memory.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    meminfo = Path("/proc/meminfo")
    if device.type == "cpu" and meminfo.is_file():
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OptionError(
        f'plan: cannot find out how much memory is free on {device}. Pass a budget: budget_bytes="8GiB".'
    )


@dataclass(frozen=True)
class ResidentMemory:
    """Memory that training takes with any split of a batch, in bytes of one kind of device.

    Attributes:
        device: the device that runs the passes. If it is an accelerator, memory of the CPU does not count.
        parameter_bytes: parameters and buffers that the loss function used.
        gradient_bytes: gradients; those of 16-bit parameters are accumulated in float32.
        state_bytes: the optimizer's state; None if unknown.
        allocated_bytes: how much of this is allocated already.
        unknown_state: why the optimizer's state is unknown.
    """

    device: torch.device = _CPU
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int | None = None
    allocated_bytes: int = 0
    unknown_state: str = "no optimizer was given"

    @property
    def total_bytes(self) -> int:
        """Parameters, gradients and state together."""
        return self.parameter_bytes + self.gradient_bytes + (self.state_bytes or 0)

    def __str__(self) -> str:
        parameters, gradients = format_bytes(self.parameter_bytes), format_bytes(self.gradient_bytes)
        if not self.state_bytes:
            return f"{parameters} of parameters and {gradients} of gradients"
        state = format_bytes(self.state_bytes)
        return f"{parameters} of parameters, {gradients} of gradients and {state} of optimizer state"

    def with_optimizer(self, optimizer: Optimizer | None) -> ResidentMemory:
        """Return this memory with an optimizer's state, estimated if the optimizer has not stepped yet."""
        if optimizer is None:
            return self
        state = _state_bytes(optimizer, self.device)
        if state:
            return replace(self, state_bytes=state, allocated_bytes=self.allocated_bytes + state)
        try:
            return replace(self, state_bytes=_estimated_state_bytes(optimizer, self.device))
        except Exception as error:  # noqa: BLE001 - an optimizer may raise anything
            name = type(optimizer).__name__
            return replace(self, unknown_state=f"{name} cannot step fake tensors ({in_one_line(error)})")


def resident_memory(
    parameters: Iterable[Tensor], others: Iterable[Tensor], device: torch.device
) -> ResidentMemory:
    """Return the memory that stays allocated, given the parameters and other tensors that a pass used."""
    parameters = [parameter for parameter in parameters if parameter.device.type == device.type]
    used = _nbytes([*parameters, *others], device)
    allocated = _nbytes((parameter.grad for parameter in parameters if parameter.grad is not None), device)
    return ResidentMemory(device, used, sum(map(_gradient_bytes, parameters)), None, used + allocated)


def in_one_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _gradient_bytes(parameter: Tensor) -> int:
    is_16_bit = parameter.dtype in (torch.float16, torch.bfloat16)
    return parameter.numel() * (4 if is_16_bit else parameter.element_size())


def _nbytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    there = (tensor for tensor in tensors if tensor.device.type == device.type)
    storages = [tensor.untyped_storage() for tensor in there if tensor.layout == torch.strided]
    return sum({storage_key(storage): storage.nbytes() for storage in storages}.values())


def _state_bytes(optimizer: Optimizer, device: torch.device) -> int:
    values = (value for state in optimizer.state.values() for value in state.values())
    return _nbytes((value for value in values if isinstance(value, Tensor)), device)


def _estimated_state_bytes(optimizer: Optimizer, device: torch.device) -> int:
    """Return the state size after an optimizer of the same class has stepped fake parameters."""
    mode = fake_tensors()[1]()

    def fake(parameter: Tensor) -> Tensor:
        result: Tensor = mode.from_tensor(parameter.detach()).requires_grad_(parameter.requires_grad)
        return result

    groups = [
        {**group, "params": [fake(parameter) for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    with mode:
        for parameter in (parameter for group in groups for parameter in group["params"]):
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        proxy: Optimizer = type(optimizer)(groups)  # type: ignore[call-arg]
        proxy.step()
    return _state_bytes(proxy, device)
