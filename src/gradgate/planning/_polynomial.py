"""Polynomials in the number of samples, fitted to values at a few numbers and checked against one more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

DEGREE = 3  # at most: a loss over the triplets of a batch
_BITS = 52
_ROUNDING = 1e-9  # of a value: far above float64's, far below one sample's


def fit(samples: Sequence[int], values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a polynomial for each quantity, and whether values confirm it.

    A single power through all values counts as confirmed from two values on: that a power fits by chance takes an
    integer coincidence. Any other polynomial is confirmed if it gives at least one value more than it has terms.

    Args:
        samples: numbers of samples, different ones; the first is the unit in which the polynomials are given.
        values: of each quantity at each number, ``[numbers, quantities]``.

    Returns:
        The coefficients ``[DEGREE + 1, quantities]``, and which quantities are confirmed, ``[quantities]``. The
        others have a curve that no value lies above.

    Example:
        >>> values = torch.tensor([[7.0, 21.0, 50.0], [7.0, 9.0, 44.0]], dtype=torch.float64)
        >>> fit([7, 3], values)[0].T.tolist()[:2]  # 7 always, and 3 n
        [[7.0, 0.0, 0.0, 0.0], [0.0, 21.0, 0.0, 0.0]]
        >>> fit([7, 3], values)[1].tolist()  # 50 and 44 may be a line, or not
        [True, True, False]
    """
    shares = torch.tensor(samples, dtype=torch.float64) / samples[0]
    powers = shares[:, None] ** torch.arange(DEGREE + 1, dtype=torch.float64)
    bound = 0.5 + _ROUNDING * values.abs().amax(0)
    found = torch.zeros(DEGREE + 1, values.shape[1], dtype=torch.float64)
    confirmed = torch.zeros(values.shape[1], dtype=torch.bool)
    for power in range(DEGREE + 1):
        fits = ((powers[:, power : power + 1] * values[0] - values).abs() <= bound).all(0) & ~confirmed
        found[power] = torch.where(fits, values[0], 0.0)
        confirmed |= fits
    for degree in range(1, min(len(samples) - 2, DEGREE) + 1):
        terms, apart = _least_squares(powers[:, : degree + 1], values)
        fits = (apart <= bound) & ~confirmed
        found[: degree + 1] = torch.where(
            fits, torch.where(terms.abs() <= bound, 0.0, terms), found[: degree + 1]
        )
        confirmed |= fits
    if not confirmed.all():
        found[:, ~confirmed] = _cover(powers, values[:, ~confirmed])
    return found, confirmed


def _cover(powers: Tensor, values: Tensor) -> Tensor:
    """Return a constant and one power, not negative, that lie above all values and nearest to them."""
    sizes, best = values.abs(), torch.full((values.shape[1],), math.inf, dtype=torch.float64)
    found = torch.zeros(DEGREE + 1, values.shape[1], dtype=torch.float64)
    for power in range(1, DEGREE + 1):
        x = powers[:, power]
        slopes = [(sizes / x[:, None]).amax(0)]
        slopes += [(sizes[i] - sizes[j]) / (x[i] - x[j]) for i, j in itertools.combinations(range(len(x)), 2)]
        for slope in slopes:
            slope = slope.clamp(min=0)
            constant = (sizes - slope * x[:, None]).amax(0).clamp(min=0)
            above = ((constant + slope * x[:, None]) / sizes.clamp(min=1)).sum(0)
            nearer = above < best - _ROUNDING
            best = torch.where(nearer, above, best)
            found[:, nearer] = 0.0
            found[0] = torch.where(nearer, constant, found[0])
            found[power] = torch.where(nearer, slope, found[power])
    return found * values[0].sign()


def _least_squares(powers: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    terms = torch.linalg.lstsq(powers, values).solution
    return terms, (powers @ terms - values).abs().amax(0)


def most_within(terms: Tensor, bound: float, unit: int) -> list[int]:
    """Return for each row the most samples, up to 2**52, with which none of its polynomials exceeds a bound.

    From above: where a polynomial exceeds the bound, the number falls to where that one does not, until none does.

    Args:
        terms: ``[powers, rows, polynomials]``.
        bound: what none may exceed.
        unit: the number of samples in which the polynomials are given.

    Returns:
        Whole numbers, 0 where not even one sample fits.
    """
    rows = torch.arange(terms.shape[1])
    found = torch.full((terms.shape[1],), float(1 << _BITS), dtype=torch.float64)
    while True:
        value, place = _value(terms, found[:, None] / unit).max(1)
        over = (value > bound) & (found > 0)
        if not over.any():
            return [int(number) for number in found.tolist()]
        worst = terms[:, rows, place]
        low, high = torch.zeros_like(found), found
        for _ in range(_BITS):  # halves the interval to the whole number
            middle = ((low + high) / 2).floor()
            fits = _value(worst, middle / unit) <= bound
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        found = torch.where(over, low, found)


def _value(terms: Tensor, x: Tensor) -> Tensor:
    value = terms[-1]
    for term in reversed(terms[:-1].unbind()):
        value = value * x + term
    return value
