"""Fits the memory of a pass, as a function of samples and length, to a few traced passes.

Memory has a local maximum wherever something is freed after something was allocated. If passes run the same
operations, the live bytes at each of these moments are a polynomial of small degree in samples and length, and the
peak is the largest of them. Otherwise the peak itself is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradgate.planning._traced_pass import TracedPass

_TOLERANCE = 3e-3  # relative to the peak of a pass; a fit with smaller errors is exact
RESERVE = 0.05  # share of a pass's memory that stays unused if the estimate is not exact

Terms: TypeAlias = "tuple[tuple[int, int], ...]"
"""Powers of samples and of length."""

_SHARES: Terms = ((1, 0), (1, 1), (1, 2))  # all memory belongs to samples
_ALIKE: Terms = ((0, 0), *_SHARES)  # every sample adds the same to a fixed part
_MASKS: Terms = (*_ALIKE, (0, 1), (0, 2))  # and there is a mask or table of each length
_PAIRS: Terms = (*_MASKS, (2, 0), (2, 1), (2, 2))  # and pairs of samples
_TRIPLETS: Terms = (*_PAIRS, (3, 0), (3, 1), (3, 2))
_CHUNK = 256  # micro-batches whose peaks are computed together


class Estimate:
    """Estimates the memory of micro-batches that never ran, from traced passes.

    Passes ``near`` the size in question are too few to tell whether the fit is exact.

    Attributes:
        resident: the memory that stays allocated between passes.
        start: the work of starting a micro-batch, in floating-point operations.
        has_batch_norm: whether a batch norm mixes the samples of a micro-batch.
        exact: whether the fit agrees with more passes than it needs.
        fitted: whether there are enough passes for any fit.
        measured: why real passes were traced instead of fake ones; "" if they were not.
        unchecked: why no real pass confirms the estimate; "" if one does.
    """

    measured = unchecked = ""

    def __init__(self, passes: Sequence[TracedPass], *, near: bool = False) -> None:
        self._passes = passes = sorted(passes, key=lambda traced: (-traced.samples, -traced.length))
        first = passes[0]
        self.resident, self.start = first.resident, first.operations * first.start_flops
        self.has_batch_norm = any(traced.has_batch_norm for traced in passes)
        self._most, self._longest = first.samples, max(first.length, 1)
        # Passes of few samples may run other operations. They are left out if enough others remain.
        same = [traced for traced in passes if len(traced.highs) == len(first.highs)]
        self._aligned = len({traced.samples for traced in same}) > 2
        if not self._aligned:
            same = passes
        values = [
            (*(traced.highs if self._aligned else (traced.peak_bytes,)), traced.work) for traced in same
        ]
        error = self._fit(same, torch.tensor(values, dtype=torch.float64))
        self.exact = error <= _TOLERANCE and not near
        self.fitted = error < math.inf
        self._numbers = self._factors = torch.ones(1, dtype=torch.float64)
        self._errors = self._pairs() if self.fitted else []
        if self.fitted:
            self._correct()

    def _fit(self, passes: Sequence[TracedPass], values: Tensor) -> float:
        """Fit polynomials to the live bytes and the work, ``[passes, values]``. Return the largest error."""
        sizes, lengths = [traced.samples for traced in passes], [traced.length for traced in passes]
        # Relative to the peak, so that a small pass counts as much as a large one.
        peaks = torch.tensor([[max(traced.peak_bytes, 1)] for traced in passes], dtype=torch.float64)
        known = len({length for n, length in zip(sizes, lengths, strict=True) if n == self._most})
        least = math.inf
        for all_terms in (_SHARES, _ALIKE, _MASKS, _PAIRS, _TRIPLETS):
            terms = tuple((i, j) for i, j in all_terms if j < known)
            powers = self._powers(sizes, lengths, terms)
            # The passes determine all terms, and at least one pass more confirms them.
            if not int(torch.linalg.matrix_rank(powers)) == len(terms) < len(passes):
                break
            fit = torch.linalg.lstsq(powers / peaks, values / peaks).solution
            error = float((powers @ fit - values)[:, :-1].div(peaks).abs().max())
            # If nothing is exact, a line is corrected: one with a fixed part, unless that is negative.
            fixed = (self._powers([0] * len(passes), lengths, terms) @ fit[:, :-1]).amax(1).min()
            if error <= _TOLERANCE or least == math.inf or (all_terms is _ALIKE and fixed > 0):
                least, self._terms = error, terms
                self._live, self._work = fit[:, :-1], fit[:, -1:]
            if least <= _TOLERANCE:
                break
        return least

    def _correct(self) -> None:
        """Correct the fit by a factor for each traced number of samples, so that no traced pass is above it."""
        factors: dict[int, float] = {}
        for traced, (real, estimated) in zip(self._passes, self._errors, strict=True):
            least = factors.get(traced.samples, 1.0 if self.exact else 0.0)
            factors[traced.samples] = max(least, real / max(estimated, 1))
        self._numbers, self._factors = (
            torch.tensor(values, dtype=torch.float64) for values in zip(*sorted(factors.items()), strict=True)
        )

    def _pairs(self) -> list[tuple[int, int]]:
        """Return the traced and the estimated peak of each traced pass."""
        passes = self._passes
        sizes, lengths = [traced.samples for traced in passes], [traced.length for traced in passes]
        return [
            (traced.peak_bytes, peak) for traced, peak in zip(passes, self.peaks(sizes, lengths), strict=True)
        ]

    def _powers(self, samples: Sequence[int], lengths: Sequence[int], terms: Terms) -> Tensor:
        n = torch.tensor(samples, dtype=torch.float64)[:, None] / self._most
        length = torch.tensor(lengths, dtype=torch.float64)[:, None] / self._longest
        return torch.cat([n**i * length**j for i, j in terms], 1)

    def peaks(self, samples: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the peak bytes of micro-batches, given the number of samples and the length of each."""
        peaks: list[int] = []
        for begin in range(0, len(samples), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            live = (self._powers(samples[chunk], lengths[chunk], self._terms) @ self._live).amax(1)
            peaks += (live * self._factor(samples[chunk])).clamp(min=0).round().long().tolist()
        return peaks

    def _factor(self, samples: Sequence[int]) -> Tensor:
        """Return the correction at some numbers of samples, interpolated between the traced numbers."""
        n, last = torch.tensor(samples, dtype=torch.float64), len(self._numbers) - 1
        n = n.clamp(self._numbers[0], self._numbers[-1])
        above = torch.searchsorted(self._numbers, n).clamp(min(1, last), last)
        below = (above - 1).clamp(min=0)
        gap = (self._numbers[above] - self._numbers[below]).clamp(min=1)
        return torch.lerp(self._factors[below], self._factors[above], (n - self._numbers[below]) / gap)

    def margin(self, available: float) -> float:
        """Return the share of the available bytes that should not be used.

        It is 0 for an exact estimate. Otherwise, it is the largest error of the fit, relative to the peak of the
        pass or a larger ``available``.
        """
        if self.exact:
            return RESERVE if self.measured else 0.0
        return min(max(RESERVE, self._error(available)), 0.5)

    def uncertainty(self, available: float) -> str:
        """Return why an estimate that is not exact is uncertain for a pass with this much memory."""
        off = f"the estimate is up to {self._error(available):.1%} off"
        return f"{off}, because memory is not a polynomial of samples and length"

    def _error(self, available: float) -> float:
        return max(
            (abs(traced - peak) / max(traced, available, 1) for traced, peak in self._errors), default=0.0
        )

    def most_samples(self, available: float, lengths: Sequence[int], most: int) -> list[int]:
        """Return how many samples of each length fit into ``available`` bytes, up to ``most``."""
        low, high = torch.zeros(len(lengths), dtype=torch.long), torch.full((len(lengths),), most)
        for _ in range(most.bit_length()):
            middle = (low + high + 1) // 2
            fits = torch.tensor(self.peaks(middle.tolist(), lengths)) <= available
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle - 1)
        return low.tolist()

    def costs(self, lengths: Sequence[int]) -> dict[int, float]:
        """Return the cost of a sample at each length, in floating-point operations. It never falls with length."""
        ascending, count = sorted(lengths), len(lengths)
        with_sample, without = (self._powers([n] * count, ascending, self._terms) for n in (1, 0))
        costs = ((with_sample - without) @ self._work).flatten().cummax(0).values
        return dict(zip(ascending, costs.tolist(), strict=True))

    def by_module(self, samples: int, length: int = 0) -> dict[str, int]:
        """Return the bytes that a sample adds to the peak of a micro-batch, by the module that allocates them.

        It is the average between two traced passes; empty if passes run different operations.
        """
        first = self._passes[0]
        fewer = [
            traced
            for traced in self._passes
            if traced.length == first.length and len(traced.ends) == len(first.ends)
        ]
        if not self._aligned or len(fewer) < 2:
            return {}
        high = int((self._powers([samples], [length], self._terms) @ self._live).argmax())
        added = first.by_module(high) - fewer[-1].by_module(high)
        difference = first.samples - fewer[-1].samples
        return {module: round(size / difference) for module, size in added.items() if size >= difference}
