"""The peak of a pass as a function of samples and length, fitted to a few traced passes.

The size of every storage is a polynomial in the samples (one for each sample, for each pair, for each triplet) and
in their length. So is what is alive after each operation. The peak is the largest of these at the given samples and
length; which operation has it depends on both.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from gradgate.planning._pass_tracer import PassTrace
from gradgate.planning._polynomial import DEGREE, fit, most_within

UNCERTAINTY_MARGIN = 0.05  # share of the memory for a pass that is not used where it is not known to the byte
TOLERANCE = 0.01  # share of a peak by which a single pass may differ
_CHUNK = 256  # lengths that are computed together


class Estimate:
    """The memory of micro-batches that never ran.

    Args:
        grid: traced passes, each number of samples at each of one to three lengths; the first has the most samples.
        probe: a pass with another number of samples at any length. With a grid of one number of samples it shows
            with which power of the samples each size grows.
        checked: whether a real pass is among them.

    Attributes:
        aligned: sizes are known for each operation. Otherwise operations differ with the batch, and only peaks are.
        exact: each size is a polynomial that more passes agree with than are needed to find it.
    """

    def __init__(
        self, grid: Sequence[PassTrace], probe: PassTrace | None = None, *, checked: bool = False
    ) -> None:
        first = grid[0]
        self.grid, self.lengths = list(grid), sorted({trace.length for trace in grid})
        self._traces = [*grid, *([] if probe is None else [probe])]
        self._most_samples: dict[tuple[float, int], int] = {}
        self.checked, self.resident, self.operations = checked, first.resident, first.operations
        self.mixes = frozenset(kind for trace in self._traces for kind in trace.mixes)
        # Few samples may take another path. They are left out where enough other passes took that of the most.
        other = {trace.samples for trace in self._traces if not _same_operations(trace, first)}
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
        self._sizes, self._modules = terms[..., :sizes], first.modules
        self._work = terms[..., sizes:].sum(-1)
        if self.aligned:
            self._work = self._work + PassTrace.FLOPS_PER_BYTE * self._sizes[..., created].sum(-1)
        # A peak is followed by a storage that is freed. Other operations need not be kept.
        last_of_run = created & ~torch.cat([created[1:], torch.zeros(1, dtype=torch.bool)])
        self._peak_candidates = last_of_run.nonzero().flatten()
        self._live = self._sizes.cumsum(-1)[..., self._peak_candidates]

    def _quantities(self, trace: PassTrace) -> Tensor:
        values = [*trace.sizes, *trace.flops] if self.aligned else [trace.peak_bytes, trace.work]
        return torch.tensor(values, dtype=torch.float64)

    def _fit_with_probe(self, values: Tensor, probe: PassTrace) -> tuple[Tensor, bool]:
        """Fit the lengths to the grid, and take each size's power of the samples from the probe."""
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
        shares = torch.tensor(lengths, dtype=torch.float64) / max(self.lengths[-1], 1)
        return shares[:, None] ** torch.arange(len(self.lengths), dtype=torch.float64)

    def _at(self, samples: Sequence[int], lengths: Sequence[int], terms: Tensor) -> Tensor:
        """Return the values ``[micro-batches, ...]`` of polynomials with the terms ``[samples, lengths, ...]``."""
        shares = torch.tensor(samples, dtype=torch.float64) / self._samples[0]
        powers = shares[:, None] ** torch.arange(DEGREE + 1, dtype=torch.float64)
        factors = powers[:, :, None] * self._powers(lengths)[:, None, :]
        return factors.flatten(1) @ terms.flatten(0, 1)

    def peaks(self, samples: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the most bytes that are alive at once in each of several micro-batches."""
        found: list[int] = []
        for begin in range(0, len(samples), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            live = self._at(samples[chunk], lengths[chunk], self._live)
            found += live.amax(1).clamp(min=0).round().long().tolist()
        return found

    @functools.cached_property
    def _traced_and_estimated(self) -> list[tuple[int, int]]:
        """The peak of each traced pass, and the estimate of it."""
        samples, lengths = zip(*[(trace.samples, trace.length) for trace in self._traces], strict=True)
        return list(
            zip([trace.peak_bytes for trace in self._traces], self.peaks(samples, lengths), strict=True)
        )

    def error(self, available: float = 0) -> float:
        """Return how far a traced pass is from its estimate, relative to its peak or to more available bytes."""
        pairs = self._traced_and_estimated
        return max(abs(traced - estimated) / max(traced, available, 1) for traced, estimated in pairs)

    def uncertainty(self, available: float) -> str:
        """Return why the estimate is uncertain, given so many bytes for a pass; "" if it is not."""
        if not self.aligned:
            error = self.error(available)
            return f"operations differ with the batch, so only peaks were compared: {error:.1%} off"
        if not self.exact or self.error(available) > TOLERANCE:
            error = self.error(available)
            return f"sizes are not polynomials of samples and length: {error:.1%} off in the traced passes"
        return ""

    def margin(self, available: float) -> float:
        """Return the share of the available bytes that should not be used."""
        if not self.uncertainty(available):
            return 0.0
        return min(max(UNCERTAINTY_MARGIN, 2 * self.error(available)), 0.5)

    def most_samples(self, available: float, lengths: Sequence[int]) -> list[int]:
        """Return how many samples of each length fit into so many bytes; 0 where one does not."""
        known = self._most_samples
        missing = [n for n in dict.fromkeys(lengths) if (available, n) not in known]
        for begin in range(0, len(missing), _CHUNK):
            chunk = missing[begin : begin + _CHUNK]
            live = torch.einsum("lj,kjp->klp", self._powers(chunk), self._live)
            most = most_within(live, available + 0.5, self._samples[0])
            known.update(((available, n), count) for n, count in zip(chunk, most, strict=True))
        return [known[available, n] for n in lengths]

    def costs(self, lengths: Sequence[int]) -> dict[int, float]:
        """Return what a sample costs at each length, in floating-point operations; ascending with the length."""
        ascending = sorted(lengths)
        work = self._work[..., None]
        count = len(ascending)
        costs = self._at([1] * count, ascending, work) - self._at([0] * count, ascending, work)
        return dict(zip(ascending, costs.flatten().cummax(0).values.tolist(), strict=True))

    def by_module(self, samples: int, length: int = 0) -> dict[str, int]:
        """Return the bytes that the last sample adds to the peak, by the module that allocates them."""
        if not self.aligned:
            return {}
        peak = int(self._peak_candidates[self._at([samples], [length], self._live).argmax()]) + 1
        with_last, without = self._at([samples, samples - 1], [length] * 2, self._sizes[..., :peak])
        found: dict[str, float] = defaultdict(float)
        for module, size in zip(self._modules[:peak], (with_last - without).tolist(), strict=True):
            found[module] += size
        return {module: round(size) for module, size in found.items() if round(size) >= 1}


def _same_operations(trace: PassTrace, other: PassTrace) -> bool:
    return (len(trace.sizes), len(trace.flops)) == (len(other.sizes), len(other.flops))
