"""Arithmetic on many gradients at once: one pass each, dense or sparse, on one device or several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradgate.torch_compat import foreach_add_, foreach_mul_, foreach_norm


def dense_values(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that hold the gradients' numbers, to be read or changed in place.

    A sparse gradient is coalesced first (its duplicate rows are added), which changes no value. Of one that lies in
    parts on several ranks it is this rank's part.
    """
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            if not gradient.is_coalesced():
                gradient = parameter.grad = gradient.coalesce()
            gradient = gradient.values()
        values.append(own_part(gradient))
    return values


def own_part(tensor: Any) -> Tensor:
    """Return this rank's part of a tensor that lies in parts on several ranks; the same memory."""
    part: Tensor = tensor.to_local() if is_part(tensor) else tensor
    return part


def is_part(tensor: Tensor) -> bool:
    """Say whether a tensor lies in parts on several ranks (a DTensor)."""
    return hasattr(tensor, "to_local")


def multiply(values: list[Tensor], factor: float | Tensor) -> None:
    """Multiply in place; a factor of exactly 1 costs nothing."""
    if not values:
        return  # torch refuses an empty list
    if not isinstance(factor, Tensor):
        if factor != 1:
            foreach_mul_(values, factor)
        return
    by_device: dict[torch.device, list[Tensor]] = {}
    for value in values:
        by_device.setdefault(value.device, []).append(value)
    for device, tensors in by_device.items():
        foreach_mul_(tensors, factor.to(device))


def add(parameters: Sequence[Tensor], others: Sequence[Tensor | None], factor: float = 1.0) -> None:
    """Add ``factor * other`` to each ``.grad``. The others are read only."""
    targets, terms = [], []
    for parameter, other in zip(parameters, others, strict=True):
        if other is None:
            continue
        if parameter.grad is None:
            parameter.grad = (other * factor).to(parameter.grad_dtype or parameter.dtype)
        elif parameter.grad.is_sparse or other.is_sparse:
            # torch adds a sparse tensor to a dense one, not the other way round.
            first, second = parameter.grad, other * factor
            parameter.grad = second + first if first.is_sparse else first + second
        else:
            targets.append(parameter.grad)
            terms.append(other)
    if targets:
        foreach_add_(targets, terms, alpha=factor)


def total_norm(values: list[Tensor]) -> float | Tensor:
    """Return the 2-norm of all gradients as one vector: a tensor where reading it would wait for a device.

    16-bit gradients are squared and added in float32: their own type overflows from 65504 on.
    """
    if any(value.dtype in (torch.float16, torch.bfloat16) for value in values):
        wide = [torch.promote_types(value.dtype, torch.float32) for value in values]
        pairs = zip(values, wide, strict=True)
        norms = tuple(torch.linalg.vector_norm(value, dtype=dtype) for value, dtype in pairs)
    else:
        norms = foreach_norm(values)
    if all(value.is_cpu for value in values):
        return math.hypot(*(norm.item() for norm in norms))
    first = norms[0]
    if any(norm.device != first.device or norm.dtype != first.dtype for norm in norms):
        norms = tuple(norm.to(first.device, torch.float64) for norm in norms)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def exact_norm(values: list[Tensor]) -> float:
    """Return the norm again in float64: finite gradients beyond 1e19 overflow when squared in float32."""
    sizes = [value.abs() if value.is_complex() else value for value in values]
    return float(torch.linalg.vector_norm(torch.stack([size.double().norm().cpu() for size in sizes])))


def norm_of_parts(parameters: Sequence[Tensor]) -> float:
    """Return the 2-norm of all gradients where some lie in parts on several ranks. Waits for these."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [one for one in gradients if is_part(one)]
    whole: Any = torch.nn.utils.get_total_norm(parts)
    rest = [one for one in gradients if not is_part(one)]
    return math.hypot(float(whole.full_tensor()), float(total_norm(rest)) if rest else 0.0)
