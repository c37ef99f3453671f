"""A sum and a count, which are added separately and divided once, and the units in which sums are held."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from gradgate.errors import CountError

Count: TypeAlias = "int | float | Tensor"
"""The number of items in a loss. A tensor on a device is not read until the window ends, to avoid synchronizing."""


@dataclass(frozen=True)
class Tally:
    """A loss summed over items, and the number of items.

    Tallies of any size are added first and divided once, at the end. A mean of their means would give
    the items of a small tally too much weight.

    Args:
        total: the loss summed over ``count`` items, in the loss's own unit.
        count: items in the sum (samples, valid tokens; or their summed weights), ``>= 0``.

    Raises:
        CountError: from :attr:`mean`, when ``count`` is zero.

    Example:
        >>> a, b = Tally(total=6.0, count=3), Tally(total=10.0, count=1)
        >>> (a + b).mean  # the mean of the means 2 and 10 would be 6
        4.0
    """

    total: float = 0.0
    count: float = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """``total / count``."""
        if not self.count:
            raise CountError("Tally.mean: the count is 0, so the mean is 0/0. Add items first.")
        return self.total / self.count


def power_of_two(count: Count) -> float | Tensor:
    """Return the largest power of two up to a count, without synchronizing; 1 for a count of 0.

    Ranks convert between units, which rounds nothing if the units are powers of two.
    """
    if not isinstance(count, Tensor):
        return 2.0 ** (math.frexp(count)[1] - 1) if count else 1.0
    wide = count.double() if count.device.type != "mps" else count.float()
    mantissa, _ = torch.frexp(wide)
    return torch.where(wide > 0, wide / (2 * mantissa), torch.ones_like(wide))
