"""Two gradients compared, each parameter on its own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDING = (
    0.03  # of a gradient: if parameters moved by one rounding change it by more, it is rounding itself
)


@dataclass(frozen=True)
class Comparison:
    """What was received, against what was expected.

    Attributes:
        error: the largest of the parameters' errors, ``max |difference| / scale``.
        worst: the index of the parameter that has it.
        factor: the number that, times what was expected, comes closest to what was received.
        residual: the error that is left after that factor.
        missing: indices of parameters that received nothing and should have.
        surplus: indices of those that should have received nothing and did.
    """

    error: float
    worst: int
    factor: float
    residual: float
    missing: list[int]
    surplus: list[int]


def scales(expected: Sequence[Tensor], nearby: Sequence[Sequence[Tensor]] = ()) -> list[float]:
    """Return what each parameter's difference is measured in: the largest entry of its own gradient.

    Where that is 0, or rounding itself, there is nothing to measure it in: then the largest of all gradients.

    Args:
        expected: the whole batch's gradient.
        nearby: the same where parameters differ by one rounding.
    """
    sizes = [_largest(gradient) for gradient in expected]
    largest = max(sizes) or 1.0
    moved = [
        max((_largest(other[i] - gradient) for other in nearby), default=0.0)
        for i, gradient in enumerate(expected)
    ]
    return [
        size if size and change <= _ROUNDING * size else largest
        for size, change in zip(sizes, moved, strict=True)
    ]


def compare(received: Sequence[Tensor], expected: Sequence[Tensor], scale: Sequence[float]) -> Comparison:
    """Compare, parameter by parameter. A difference that is not finite is infinite."""
    pairs = list(zip(received, expected, scale, strict=True))
    # Scaled, so that a parameter with small gradients has as much of a say in the factor as others.
    along = sum(float((r / s) @ (e / s)) for r, e, s in pairs)
    length = sum(float((e / s) @ (e / s)) for _, e, s in pairs)
    factor = along / length if length else 0.0
    errors = [_largest(r - e) / s for r, e, s in pairs]
    return Comparison(
        error=max(errors),
        worst=max(range(len(errors)), key=errors.__getitem__),
        factor=factor,
        residual=max(_largest(r - factor * e) / s for r, e, s in pairs),
        missing=[i for i, (r, e, s) in enumerate(pairs) if not r.any() and _largest(e) == s],
        surplus=[i for i, (r, e, _) in enumerate(pairs) if r.any() and not e.any()],
    )


def real_vector(tensor: Tensor) -> Tensor:
    """Return all entries in float64 on the CPU, so that comparing rounds nothing; of a complex one both halves."""
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.cpu().double().reshape(-1)


def _largest(vector: Tensor) -> float:
    size = float(vector.abs().max()) if vector.numel() else 0.0
    return math.inf if math.isnan(size) else size
