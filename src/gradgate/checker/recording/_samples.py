"""Samples of values, to compare before and after, and the sizes of gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FEW = 0.1  # part of the values: the smallest ones may move where all others are rounded
_detach = Tensor.detach  # as torch has it: the one that watches calls costs more
_SAMPLE = 2048  # values of a parameter that are compared before and after a step


def sample(parameter: Tensor) -> Tensor:
    """Return a copy of some of a tensor's values, evenly spread."""
    flat = _detach(parameter).reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two samples are equal."""
    return a.shape == b.shape and torch.equal(a, b)


def sum_of(values: Tensor) -> float:
    """Return a number that identifies a sample's values."""
    return float(values.abs().double().sum())


def sizes(gradients: list[Any]) -> list[tuple[float, float]]:
    """Return each gradient's largest absolute value and its norm."""
    found = []
    with torch.no_grad():
        for gradient in gradients:
            dense = _detach(gradient)
            dense = dense.coalesce().values() if dense.is_sparse else dense
            dense = torch.view_as_real(dense) if dense.is_complex() else dense
            if not dense.numel():
                found.append((0.0, 0.0))
                continue
            wide = torch.promote_types(dense.dtype, torch.float32)
            # One transfer for all: each synchronizes with the device.
            norms = [each.to(wide) for each in torch.aminmax(dense)]
            low, high, norm = torch.stack([*norms, torch.linalg.vector_norm(dense, dtype=wide)]).tolist()
            found.append((max(-low, high), norm))
    return found


def largest(dense: Tensor) -> float:
    """Return the largest absolute value, NaN if one is NaN. The infinity norm is 20 times slower."""
    low, high = torch.stack(torch.aminmax(_detach(dense))).tolist()
    return float(max(-low, high))


def moved_by(before: Tensor, after: Tensor, numel: int) -> tuple[float, float]:
    """Return the norm of a parameter's change and of its values before, estimated from samples."""
    if before.shape != after.shape or not before.is_floating_point() or not before.numel():
        return 0.0, 0.0
    wide = torch.promote_types(before.dtype, torch.float32)
    norms = [torch.linalg.vector_norm(values, dtype=wide) for values in (after - before, before)]
    change, size = (torch.stack(norms) * (numel / before.numel()) ** 0.5).tolist()
    return change, size


def is_rounded(before: Tensor, after: Tensor, gradient: Tensor | None) -> bool:
    """Return whether hardly any of the 16-bit values that have a gradient changed."""
    if before.dtype not in (torch.bfloat16, torch.float16) or gradient is None or gradient.is_sparse:
        return False
    updated = sample(gradient) != 0
    if updated.shape != before.shape or before.shape != after.shape:
        return False
    changed, of = torch.stack([((before != after) & updated).sum(), updated.sum()]).tolist()
    return bool(changed < _FEW * of)


@torch.no_grad()
def statistics_drift(
    first: tuple[Tensor, Tensor] | None, now: tuple[Tensor, Tensor] | None
) -> tuple[float, float] | None:
    """Return how far means moved, in the first standard deviations, and variances, relative to the first ones.

    Both are averages over the channels.
    """
    if first is None or now is None or first[0].shape != now[0].shape:
        return None
    (means, variances), (new_means, new_variances) = first, now
    least = variances.clamp(min=1e-12)
    moved = ((new_means - means).abs() / least.sqrt()).double().mean()
    return float(moved), float(((new_variances - variances).abs() / least).double().mean())


@torch.no_grad()
def full_rows(gradient: Tensor) -> Tensor | None:
    """Return which rows of a gradient are not all zero; None if it has no rows."""
    if gradient.is_sparse or not gradient.dim():
        return None
    return (gradient != 0).reshape(len(gradient), -1).any(1)


def drifts(before: Tensor, parameter: Tensor, masked: Tensor) -> bool:
    """Return whether rows moved whose gradient a hook zeroed, while others have a gradient."""
    if before.shape != parameter.shape or len(masked) != len(parameter):
        return False
    moved = (before != _detach(parameter)).reshape(len(before), -1).any(1)
    return bool((masked & moved).any()) and not bool(masked.all())
