"""The peak of a pass as a function of samples and length, from a few passes that were followed.

Each storage has a size that is linear in the samples and at most quadratic in their length. So is what is live
after each operation. The peak is the largest of these, at any samples and length: it may lie elsewhere there.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradgate.memory._follower import Trace

_AT_ONCE = 1024  # lengths that are computed together
_ENDLESS = 1 << 52
_FLOPS_PER_BYTE = 8  # that take as long as to write a byte and to read it


@dataclass(frozen=True)
class Followed:
    """A pass that was followed: of how many samples, of which length (0: samples have none)."""

    samples: int
    length: int
    trace: Trace


class Forecast:
    """The memory of a micro-batch that was never run.

    Args:
        followed: passes of two numbers of samples at each of one to three lengths.
    """

    def __init__(self, followed: Sequence[Followed]) -> None:
        self._unit = max(*(one.length for one in followed), 1)
        self.same = len({len(one.trace.sizes) for one in followed}) == 1
        """Whether all passes made the same operations; else only their peaks are known."""
        lines = [_live(one.trace) for one in followed]
        if not self.same:
            lines = [line.amax()[None] for line in lines]
        lengths = len({one.length for one in followed})
        powers = self._powers([one.length for one in followed], lengths)
        counts = torch.tensor([one.samples for one in followed], dtype=torch.float64)[:, None]
        left = torch.cat([powers, counts * powers], dim=1)
        solved = torch.linalg.solve(left, torch.stack(lines))  # [terms, operations]
        # The peak is where something goes next; all else need not be kept.
        nothing = torch.zeros(len(lines), 1, dtype=torch.float64)
        rows = torch.stack(lines).diff(dim=1, append=nothing).lt(0).any(0)
        self._places = rows.nonzero().flatten()
        self._fixed, self._each = solved[:lengths, rows], solved[lengths:, rows]
        self._followed = followed
        works = torch.tensor([_work(one.trace) for one in followed], dtype=torch.float64)
        self._work = torch.linalg.solve(left, works)[lengths:]
        self.mixes = frozenset(kind for one in followed for kind in one.trace.mixes)

    def peaks(self, samples: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the most bytes that are live at once in each of several micro-batches."""
        found: list[int] = []
        for begin in range(0, len(samples), _AT_ONCE):
            fixed, each = self._at(lengths[begin : begin + _AT_ONCE])
            counts = torch.tensor(samples[begin : begin + _AT_ONCE], dtype=torch.float64)[:, None]
            found += (fixed + counts * each).amax(1).round().long().tolist()
        return found

    def most_samples(self, budget_bytes: float, lengths: Sequence[int]) -> list[int]:
        """Return how many samples of each length fit into a budget; 0 where one does not."""
        found: list[int] = []
        for begin in range(0, len(lengths), _AT_ONCE):
            fixed, each = self._at(lengths[begin : begin + _AT_ONCE])
            room = budget_bytes + 0.5 - fixed
            most = torch.where(each > 1e-3, room / each.clamp(min=1e-3), math.inf).amin(1).clamp(max=_ENDLESS)
            found += torch.where((room >= 0).all(1), most.floor(), 0).long().tolist()
        return found

    def costs(self, lengths: Sequence[int]) -> dict[int, float]:
        """Return what a sample costs at each length, in floating-point operations; ascending with the length."""
        ascending = sorted(lengths)
        costs = (self._powers(ascending, len(self._work)) @ self._work).cummax(0).values.tolist()
        return dict(zip(ascending, costs, strict=True))

    def _at(self, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what is live at each place of a pass, apart from the samples and for each of them."""
        powers = self._powers(lengths, len(self._fixed))
        return powers @ self._fixed, powers @ self._each

    def _powers(self, lengths: Sequence[int], degrees: int) -> Tensor:
        shares = torch.tensor(lengths, dtype=torch.float64) / self._unit
        return shares[:, None] ** torch.arange(degrees, dtype=torch.float64)

    def by_module(self, samples: int, length: int = 0) -> dict[str, int]:
        """Return the bytes that each sample adds where so many of a length have their peak, by the maker."""
        one, other = sorted(self._followed, key=lambda each: (-each.length, each.samples))[:2]
        if not self.same or one.length != other.length:
            return {}
        fixed, each_sample = self._at([length])
        place = int(self._places[(fixed + samples * each_sample).argmax()])
        found: dict[str, float] = defaultdict(float)
        for sign, each in ((1, other), (-1, one)):
            for size, maker in itertools.islice(
                zip(each.trace.sizes, each.trace.makers, strict=True), place + 1
            ):
                found[maker] += sign * size / (other.samples - one.samples)
        return {maker: round(size) for maker, size in found.items() if size >= 1}


def _live(trace: Trace) -> Tensor:
    return torch.tensor(trace.sizes or [0], dtype=torch.float64).cumsum(0)


def _work(trace: Trace) -> float:
    """Return what a pass takes, in floating-point operations: also small ones have to move what they make."""
    return sum(trace.flops) + _FLOPS_PER_BYTE * sum(size for size in trace.sizes if size > 0)
