"""Compare two gradients, each parameter on its own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# If rounding the parameters once changes a gradient by a larger fraction, the gradient is only rounding error.
_ROUNDING = 0.03


def scales(expected: Sequence[Tensor], nearby: Sequence[Sequence[Tensor]] = ()) -> list[float]:
    """Return the scale of each parameter's error: the largest entry of its expected gradient.

    If that entry is 0, or only rounding error, the scale is the largest entry of all gradients. ``nearby`` are the
    gradients at parameters that differ only by rounding.
    """
    sizes = [_largest(gradient) for gradient in expected]
    largest = max(sizes) or 1.0
    units = []
    for index, (size, gradient) in enumerate(zip(sizes, expected, strict=True)):
        change = max((_largest(other[index] - gradient) for other in nearby), default=0.0)
        units.append(size if size and change <= _ROUNDING * size else largest)
    return units


def compare(
    received: Sequence[Tensor], expected: Sequence[Tensor], scale: Sequence[float]
) -> tuple[float, float, float, int]:
    """Compare two gradients, parameter by parameter. A NaN difference counts as infinite.

    Returns:
        The largest error of a parameter, ``max |difference| / scale``; the best fit of ``received = factor *
        expected``; the error that remains after that fit; and the index of the parameter with the largest error.
    """
    pairs = list(zip(received, expected, scale, strict=True))
    # Scaled, so that parameters with small gradients count as much as others in the factor.
    along = sum(float((r / s) @ (e / s)) for r, e, s in pairs)
    length = sum(float((e / s) @ (e / s)) for _, e, s in pairs)
    factor = along / length if length else 0.0
    errors = [_largest(r - e) / s for r, e, s in pairs]
    residual = max(_largest(r - factor * e) / s for r, e, s in pairs)
    return max(errors), factor, residual, errors.index(max(errors))


def real_vector(tensor: Tensor) -> Tensor:
    """Return all entries as float64 on the CPU, a complex entry as two, so that comparing does not round."""
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.cpu().double().reshape(-1)


def _largest(vector: Tensor) -> float:
    size = float(vector.abs().max()) if vector.numel() else 0.0
    return math.inf if math.isnan(size) else size
