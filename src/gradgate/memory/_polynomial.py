"""Polynomials in the number of samples, fitted to values at a few numbers and checked against one more."""

from __future__ import annotations

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
        The coefficients ``[DEGREE + 1, quantities]``, and which quantities are confirmed, ``[quantities]``. The others
        have a curve that lies near all their values, or a line through those of the two largest numbers.

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
        found = torch.where(confirmed, found, _near(shares, powers, values))
    return found, confirmed


def _near(shares: Tensor, powers: Tensor, values: Tensor) -> Tensor:
    """Return a curve near all values where it bends upwards and is much nearer, else a line."""
    found = torch.zeros(DEGREE + 1, values.shape[1], dtype=torch.float64)
    two = shares.argsort(descending=True)[:2]
    found[:2] = torch.linalg.solve(powers[two][:, :2], values[two])
    if len(shares) > 2:
        curve, apart = _least_squares(powers[:, :3], values)
        bends = (curve[2] > 0) & (4 * apart < (powers @ found - values).abs().amax(0))
        found[:3] = torch.where(bends, curve, found[:3])
    return found


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
