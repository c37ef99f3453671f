"""The peak of a pass as a function of samples and length, fitted to a few passes that were followed.

Every storage has a size that is a polynomial in the samples (one for each sample, for each pair, for each triplet)
and in their length. So is what is live after each operation. The peak is the largest of these, at any samples and
length: it may lie elsewhere there.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradgate.planning._follower import Trace
from gradgate.planning._polynomial import DEGREE, fit, most_within

MARGIN = 0.05  # of what varies, left alone where it is not known to the byte
AGREE = 0.01  # of a peak: so much a single pass may differ
_AT_ONCE = 256  # lengths that are computed together
_FLOPS_PER_BYTE = 8  # that take as long as to write a byte and to read it


@dataclass(frozen=True)
class Pass:
    """A pass that was followed: of how many samples, of which length (0: samples have none)."""

    samples: int
    length: int
    trace: Trace


class Estimate:
    """The memory of a micro-batch that was never run.

    Args:
        grid: passes, each number of samples at each of one to three lengths; the first has the most samples.
        probe: a pass of other samples at any length. With a grid of one number of samples it shows which power of
            the samples each size goes with.
        checked: a real pass is among them.

    Attributes:
        aligned: sizes are known for each operation; else only peaks are, for operations differ with the batch.
        exact: each is a polynomial that gives more passes than are needed to find it.
    """

    def __init__(self, grid: Sequence[Pass], probe: Pass | None = None, *, checked: bool = False) -> None:
        first = grid[0].trace
        self._passes = [*grid, *([] if probe is None else [probe])]
        self.grid, self.lengths = grid, sorted({each.length for each in grid})
        self._fitting: dict[tuple[float, int], int] = {}
        self.checked, self.standing, self.operations = checked, first.standing, first.operations
        self.mixes = frozenset(kind for each in self._passes for kind in each.trace.mixes)
        # Few samples may take another path. They do not enter where enough other passes took that of the most.
        other = {each.samples for each in self._passes if not _alike(each.trace, first)}
        numbers = list(dict.fromkeys(each.samples for each in grid))
        same = [samples for samples in numbers if samples not in other]
        with_probe = probe is not None and probe.samples not in other
        self.aligned = len(same) > 1 or (same == numbers and with_probe)
        self._samples = same if self.aligned else numbers
        by_place = {(each.samples, each.length): self._quantities(each.trace) for each in grid}
        rows = [torch.stack([by_place[n, length] for length in self.lengths]) for n in self._samples]
        if len(rows) == 1 and probe is not None:
            found, self.exact = self._with_probe(rows[0], probe)
        else:
            found, self.exact = self._with_grid(torch.stack(rows))
        sizes = len(first.sizes) if self.aligned else 1
        made = torch.tensor([size > 0 for size in first.sizes[:sizes]])
        self._sizes, self._makers = found[..., :sizes], first.makers
        self._work = found[..., sizes:].sum(-1)
        if self.aligned:
            self._work = self._work + _FLOPS_PER_BYTE * self._sizes[..., made].sum(-1)
        # The peak is where something goes next; all else need not be kept.
        self._places = (made & ~torch.cat([made[1:], torch.zeros(1, dtype=torch.bool)])).nonzero().flatten()
        self._live = self._sizes.cumsum(-1)[..., self._places]

    def _quantities(self, trace: Trace) -> Tensor:
        values = [*trace.sizes, *trace.flops] if self.aligned else [trace.peak_bytes, work_of(trace)]
        return torch.tensor(values, dtype=torch.float64)

    def _with_probe(self, values: Tensor, probe: Pass) -> tuple[Tensor, bool]:
        """Fit the lengths, and take the samples' power from the probe."""
        by_length = torch.linalg.solve(self._powers(self.lengths), values)
        there = self._powers([probe.length]) @ by_length
        probed = self._quantities(probe.trace)[None]
        found, exact = fit([self._samples[0], probe.samples], torch.cat([there, probed]))
        return (found != 0)[:, None] * by_length, self.aligned and bool(exact.all())

    def _with_grid(self, values: Tensor) -> tuple[Tensor, bool]:
        fits = [fit(self._samples, values[:, place]) for place in range(len(self.lengths))]
        by_length = torch.stack([found for found, _ in fits], dim=1)
        found = torch.linalg.solve(self._powers(self.lengths), by_length)
        return found, all(bool(exact.all()) for _, exact in fits)

    def _powers(self, lengths: Sequence[int]) -> Tensor:
        shares = torch.tensor(lengths, dtype=torch.float64) / max(self.lengths[-1], 1)
        return shares[:, None] ** torch.arange(len(self.lengths), dtype=torch.float64)

    def _terms(self, samples: Tensor) -> Tensor:
        return (samples / self._samples[0])[:, None] ** torch.arange(DEGREE + 1, dtype=torch.float64)

    def _at(self, samples: Sequence[int], lengths: Sequence[int], terms: Tensor) -> Tensor:
        """Return a quantity's values, ``[micro-batches, ...]``, from its terms ``[samples, lengths, ...]``."""
        counts = self._terms(torch.tensor(samples, dtype=torch.float64))
        factors = counts[:, :, None] * self._powers(lengths)[:, None, :]
        return factors.flatten(1) @ terms.flatten(0, 1)

    def peaks(self, samples: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the most bytes that are live at once in each of several micro-batches."""
        found: list[int] = []
        for begin in range(0, len(samples), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            live = self._at(samples[part], lengths[part], self._live)
            found += live.amax(1).clamp(min=0).round().long().tolist()
        return found

    @functools.cached_property
    def _compared(self) -> list[tuple[int, int]]:
        """Of each pass that was followed, the peak and what is estimated for it."""
        said = self.peaks([each.samples for each in self._passes], [each.length for each in self._passes])
        return [(each.trace.peak_bytes, peak) for each, peak in zip(self._passes, said, strict=True)]

    def off(self, room: float = 0) -> float:
        """Return how far a pass that was followed is from its estimate, by its peak or a larger room."""
        return max(abs(seen - said) / max(seen, room, 1) for seen, said in self._compared)

    def doubt(self, room: float) -> str:
        """Return why the estimate is not sure within a room of so many bytes; "" where it is."""
        if not self.aligned:
            return f"operations differ with the batch, only peaks were compared: {self.off(room):.1%} off"
        if not self.exact or self.off(room) > AGREE:
            return f"sizes are no polynomials of samples and length: {self.off(room):.1%} off in what was followed"
        return ""

    def margin(self, room: float) -> float:
        """Return the share of a room that is better left alone."""
        return min(max(MARGIN, 2 * self.off(room)), 0.5) if self.doubt(room) else 0.0

    def most_samples(self, budget_bytes: float, lengths: Sequence[int]) -> list[int]:
        """Return how many samples of each length fit into a budget; 0 where one does not."""
        missing = [n for n in dict.fromkeys(lengths) if (budget_bytes, n) not in self._fitting]
        for begin in range(0, len(missing), _AT_ONCE):
            part = missing[begin : begin + _AT_ONCE]
            live = torch.einsum("lj,kjp->klp", self._powers(part), self._live)
            most = most_within(live, budget_bytes + 0.5, self._samples[0])
            self._fitting.update(((budget_bytes, n), count) for n, count in zip(part, most, strict=True))
        return [self._fitting[budget_bytes, n] for n in lengths]

    def costs(self, lengths: Sequence[int]) -> dict[int, float]:
        """Return what a sample costs at each length, in floating-point operations; ascending with the length."""
        ascending = sorted(lengths)
        count = len(ascending)
        work = self._work[..., None]
        costs = self._at([1] * count, ascending, work) - self._at([0] * count, ascending, work)
        return dict(zip(ascending, costs.flatten().cummax(0).values.tolist(), strict=True))

    def by_module(self, samples: int, length: int = 0) -> dict[str, int]:
        """Return the bytes that the last sample adds where so many of a length have their peak, by the maker."""
        if not self.aligned:
            return {}
        place = int(self._places[self._at([samples], [length], self._live).argmax()]) + 1
        with_it, without = self._at([samples, samples - 1], [length] * 2, self._sizes[..., :place])
        found: dict[str, float] = defaultdict(float)
        for maker, size in zip(self._makers[:place], (with_it - without).tolist(), strict=True):
            found[maker] += size
        return {maker: round(size) for maker, size in found.items() if round(size) >= 1}


def _alike(one: Trace, other: Trace) -> bool:
    return (len(one.sizes), len(one.flops)) == (len(other.sizes), len(other.flops))


def work_of(trace: Trace) -> float:
    """Return what a pass takes, in floating-point operations: also small ones have to move what they make."""
    return sum(trace.flops) + _FLOPS_PER_BYTE * sum(size for size in trace.sizes if size > 0)
