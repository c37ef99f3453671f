"""Fits the peak memory of a pass, as a function of samples and length, to a few traced passes.

The size of every storage is a polynomial in the number of samples (its terms count samples, pairs, triplets) and in
their length. So is the live memory after each operation. The peak is the maximum of these polynomials.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradgate.planning._trace import PassTrace

UNCERTAINTY_MARGIN = 0.05  # share of a pass's memory that stays unused if the estimate is not exact
TOLERANCE = 0.01  # relative error of a peak up to which an estimate counts as exact
_CHUNK = 256  # lengths that are computed together
_DEGREE = 3  # highest power of the number of samples, as in a loss over triplets
_ROUNDING = 1e-9  # relative; far above float64's, far below the effect of one sample


class Estimate:
    """Estimates the memory of micro-batches that never ran.

    Args:
        grid: traced passes, with each number of samples at each of one to three lengths; the first has the most
            samples.
        probe: a pass with another number of samples, at any length. If the grid has only one number of samples,
            the probe shows which power of that number each size follows.

    Attributes:
        start: the work of starting a micro-batch, in floating-point operations.
        aligned: whether passes run the same operations, so that each size is fitted. Otherwise only peaks are
            fitted.
        exact: whether each size is a polynomial, confirmed by more passes than its fit needs.
        measured: why real passes were traced instead of fake ones; "" if they were not.
        unchecked: why no real pass confirms the estimate; "" if one does.
    """

    measured = unchecked = ""

    def __init__(self, grid: Sequence[PassTrace], probe: PassTrace | None = None) -> None:
        first = grid[0]
        self.grid, self.lengths = list(grid), sorted({trace.length for trace in grid})
        self._traces = [*grid, *([] if probe is None else [probe])]
        self._most_samples: dict[tuple[float, int], dict[int, int]] = {}
        self.resident, self.start = first.resident, first.operations * first.start_flops
        self.has_batch_norm = any(trace.has_batch_norm for trace in self._traces)
        # A pass of few samples may run other operations than the largest pass. Such a pass is ignored if enough
        # others remain.
        run = [(trace.samples, (len(trace.sizes), len(trace.flops))) for trace in self._traces]
        other = {samples for samples, operations in run if operations != run[0][1]}
        numbers = list(dict.fromkeys(trace.samples for trace in grid))
        same = [samples for samples in numbers if samples not in other]
        with_probe = probe is not None and probe.samples not in other
        self.aligned = len(same) > 1 or (same == numbers and with_probe)
        self._samples = same if self.aligned else numbers
        by_pass = {(trace.samples, trace.length): self._quantities(trace) for trace in grid}
        rows = [torch.stack([by_pass[n, length] for length in self.lengths]) for n in self._samples]
        if len(rows) == 1 and probe is not None:
            terms, self.exact = self._fit_with_probe(rows[0], probe)
        else:
            terms, self.exact = self._fit_grid(torch.stack(rows))
        sizes = len(first.sizes) if self.aligned else 1
        created = torch.tensor([size > 0 for size in first.sizes[:sizes]])
        self._work = terms[..., sizes:].sum(-1)
        if self.aligned:
            self._work = self._work + PassTrace.FLOPS_PER_BYTE * terms[..., :sizes][..., created].sum(-1)
        # Memory peaks just before a storage is freed, so of several allocations in a row, only the last can be the
        # peak.
        last_of_run = created & ~torch.cat([created[1:], torch.zeros(1, dtype=torch.bool)])
        self._live = terms[..., :sizes].cumsum(-1)[..., last_of_run]

    def _quantities(self, trace: PassTrace) -> Tensor:
        values = [*trace.sizes, *trace.flops] if self.aligned else [trace.peak_bytes, trace.work]
        return torch.tensor(values, dtype=torch.float64)

    def _fit_with_probe(self, values: Tensor, probe: PassTrace) -> tuple[Tensor, bool]:
        """Fit lengths to the grid, and samples to the probe. Return the terms, and whether they are exact."""
        by_length = torch.linalg.solve(self._powers(self.lengths), values)
        at_probe = self._powers([probe.length]) @ by_length
        found, exact = fit(
            [self._samples[0], probe.samples], torch.cat([at_probe, self._quantities(probe)[None]])
        )
        return (found != 0)[:, None] * by_length, self.aligned and bool(exact.all())

    def _fit_grid(self, values: Tensor) -> tuple[Tensor, bool]:
        fits = [fit(self._samples, values[:, column]) for column in range(len(self.lengths))]
        by_length = torch.stack([found for found, _ in fits], dim=1)
        found = torch.linalg.solve(self._powers(self.lengths), by_length)
        return found, all(bool(exact.all()) for _, exact in fits)

    def _powers(self, lengths: Sequence[int]) -> Tensor:
        return _powers([length / max(self.lengths[-1], 1) for length in lengths], len(self.lengths) - 1)

    def _at(self, samples: Sequence[int], lengths: Sequence[int], terms: Tensor) -> Tensor:
        """Return the values ``[micro-batches, ...]`` of polynomials with the terms ``[samples, lengths, ...]``."""
        powers = _powers([each / self._samples[0] for each in samples], _DEGREE)
        factors = powers[:, :, None] * self._powers(lengths)[:, None, :]
        return factors.flatten(1) @ terms.flatten(0, 1)

    def peaks(self, samples: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the peak bytes of each of several micro-batches."""
        found: list[int] = []
        for begin in range(0, len(samples), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            live = self._at(samples[chunk], lengths[chunk], self._live)
            found += live.amax(1).clamp(min=0).round().long().tolist()
        return found

    def error(self, available: float = 0) -> float:
        """Return the largest error of an estimate, relative to the pass's peak or a larger ``available``."""
        estimated = self.peaks(
            [trace.samples for trace in self._traces], [trace.length for trace in self._traces]
        )
        pairs = [(trace.peak_bytes, peak) for trace, peak in zip(self._traces, estimated, strict=True)]
        return max(abs(traced - peak) / max(traced, available, 1) for traced, peak in pairs)

    def uncertainty(self, available: float) -> str:
        """Return why the estimate is uncertain for a pass with this much memory; "" if it is certain."""
        error = self.error(available)
        if not self.aligned:
            return f"operations differ with the batch, so only peaks were compared; the estimate is {error:.1%} off"
        if not self.exact or error > TOLERANCE:
            return f"the estimate is {error:.1%} off, because sizes are not polynomials of samples and length"
        return ""

    def margin(self, available: float) -> float:
        """Return the share of the available bytes that should not be used."""
        if not self.uncertainty(available):
            return 0.0
        return min(max(UNCERTAINTY_MARGIN, 2 * self.error(available)), 0.5)

    def most_samples(self, available: float, lengths: Sequence[int], most: int) -> list[int]:
        """Return how many samples of each length fit into ``available`` bytes, up to ``most``."""
        known = self._most_samples.setdefault((available, most), {})  # later batches have the same lengths
        missing = [length for length in dict.fromkeys(lengths) if length not in known]
        low, high = torch.zeros(len(missing), dtype=torch.long), torch.full((len(missing),), most)
        for _ in range(most.bit_length() if missing else 0):
            middle = (low + high + 1) // 2
            fits = torch.tensor(self.peaks(middle.tolist(), missing)) <= available
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle - 1)
        known.update(zip(missing, low.tolist(), strict=True))
        return [known[length] for length in lengths]

    def costs(self, lengths: Sequence[int]) -> dict[int, float]:
        """Return the cost of a sample at each length, in floating-point operations. It never falls with length."""
        ascending = sorted(lengths)
        work = self._work[..., None]
        count = len(ascending)
        costs = self._at([1] * count, ascending, work) - self._at([0] * count, ascending, work)
        return dict(zip(ascending, costs.flatten().cummax(0).values.tolist(), strict=True))


def fit(samples: Sequence[int], values: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a polynomial in the number of samples to each quantity, and check whether the values confirm it.

    Two values are enough to confirm a single power: sizes are integers, so a wrong power hardly fits both. Any
    other polynomial is confirmed if it fits at least one value more than it has terms. If no polynomial is
    confirmed, a quantity gets a curve above all of its values.

    Args:
        samples: distinct numbers of samples; the first is the unit of the polynomials.
        values: the quantities at each number, ``[numbers, quantities]``.

    Returns:
        The coefficients ``[powers, quantities]``, and which quantities are confirmed.

    Example:
        >>> values = torch.tensor([[7.0, 21.0, 50.0], [7.0, 9.0, 44.0]], dtype=torch.float64)
        >>> fit([7, 3], values)[0].T.tolist()[:2]  # 7 always, and 3 n
        [[7.0, 0.0, 0.0, 0.0], [0.0, 21.0, 0.0, 0.0]]
        >>> fit([7, 3], values)[1].tolist()  # 50 and 44 may be a line, or not
        [True, True, False]
    """
    powers = _powers([each / samples[0] for each in samples], _DEGREE)
    bound = 0.5 + _ROUNDING * values.abs().amax(0)
    found = torch.zeros(_DEGREE + 1, values.shape[1], dtype=torch.float64)
    confirmed = torch.zeros(values.shape[1], dtype=torch.bool)
    for power in range(_DEGREE + 1):
        fits = ((powers[:, power : power + 1] * values[0] - values).abs() <= bound).all(0) & ~confirmed
        found[power] = torch.where(fits, values[0], 0.0)
        confirmed |= fits
    for degree in range(1, min(len(samples) - 2, _DEGREE) + 1):
        terms = torch.linalg.lstsq(powers[:, : degree + 1], values).solution
        fits = ((powers[:, : degree + 1] @ terms - values).abs().amax(0) <= bound) & ~confirmed
        rounded = torch.where(terms.abs() <= bound, 0.0, terms)
        found[: degree + 1] = torch.where(fits, rounded, found[: degree + 1])
        confirmed |= fits
    if not confirmed.all():
        found[:, ~confirmed] = _cover(powers, values[:, ~confirmed])
    return found, confirmed


def _powers(shares: Sequence[float], degree: int) -> Tensor:
    """Return the powers of some numbers, ``[numbers, degree + 1]``."""
    values = torch.tensor(shares, dtype=torch.float64)
    return values[:, None] ** torch.arange(degree + 1, dtype=torch.float64)


def _cover(powers: Tensor, values: Tensor) -> Tensor:
    """Return a curve, a nonnegative constant plus a single power, that is above all values and close to them."""
    sizes, best = values.abs(), torch.full((values.shape[1],), math.inf, dtype=torch.float64)
    found = torch.zeros(_DEGREE + 1, values.shape[1], dtype=torch.float64)
    for power in range(1, _DEGREE + 1):
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
