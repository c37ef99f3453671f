"""Samples of values, for a comparison before and after; and the sizes of gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SAMPLE = 2048  # values of a parameter that are compared before and after a step


def sample(parameter: Tensor) -> Tensor:
    """Return a copy of some of a tensor's values, evenly spread."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()


def same(one: Tensor, other: Tensor) -> bool:
    """Say whether two samples are equal."""
    return one.shape == other.shape and torch.equal(one, other)


def sum_of(values: Tensor) -> float:
    """Return a number that stands for a sample's values."""
    return float(values.abs().double().sum())


def sizes(gradients: list[Any]) -> list[float]:
    """Return each gradient's largest absolute value."""
    found = []
    with torch.no_grad():
        for gradient in gradients:
            dense = gradient.detach()
            dense = dense.coalesce().values() if dense.is_sparse else dense
            dense = torch.view_as_real(dense) if dense.is_complex() else dense
            found.append(float(torch.linalg.vector_norm(dense, float("inf"))) if dense.numel() else 0.0)
    return found


def drifts(before: Tensor, parameter: Tensor, masked: Tensor) -> bool:
    """Say whether rows moved whose gradient a hook has set to zero, while others have one."""
    if before.shape != parameter.shape or len(masked) != len(parameter):
        return False
    moved = (before != parameter.detach()).reshape(len(before), -1).any(1)
    return bool((masked & moved).any()) and not bool(masked.all())
