"""Packs the samples of a batch into micro-batches, and distributes samples over ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from gradgate.byte_sizes import format_bytes
from gradgate.errors import BudgetError
from gradgate.planning._estimate import Estimate
from gradgate.planning._samples import Samples

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of a micro-batch without their data; see :class:`MicroBatch`."""

    indices: Sequence[int]
    length: int
    count: int
    peak_bytes: int


class MicroBatch(Generic[T]):
    """Some samples of a batch, for one forward and backward pass.

    Attributes:
        count: valid items: the sum of the samples' lengths, or the number of samples if they have no lengths.
        indices: the indices of its samples in the batch, in the order of the micro-batch.
        length: the number of columns after trimming; 0 if it is not trimmed.
        peak_bytes: the estimated peak of its forward and backward pass, without resident memory.
    """

    def __init__(self, samples: Samples, part: Part) -> None:
        self.indices = tuple(part.indices)
        self.length, self.count, self.peak_bytes = part.length, part.count, part.peak_bytes
        self._samples = samples

    @functools.cached_property
    def data(self) -> T:
        """The samples, in the batch's own types. Assembled on first use, to save memory."""
        taken: T = self._samples.take(self.indices, self.length)
        return taken

    def __repr__(self) -> str:
        length = f" of length {self.length}" if self.length else ""
        return f"MicroBatch({len(self.indices)} samples{length}, count={self.count})"


class Split(Sequence[MicroBatch[T]]):
    """The micro-batches of a batch, each made when it is read."""

    def __init__(self, parts: Sequence[Part], samples: Samples) -> None:
        self.parts = parts
        self.samples = samples

    @overload
    def __getitem__(self, index: int) -> MicroBatch[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Split[T]: ...
    def __getitem__(self, index: int | slice) -> MicroBatch[T] | Split[T]:
        if isinstance(index, slice):
            return Split(self.parts[index], self.samples)
        return MicroBatch(self.samples, self.parts[index])

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        samples = sum(len(part.indices) for part in self.parts)
        return f"Split({samples} samples in {counted(len(self))})"

    @property
    def padding(self) -> float:
        """The share of the columns that are padding; 0 without lengths."""
        return padding_of(self.parts)

    @property
    def peak_bytes(self) -> int:
        """The largest estimated peak of its micro-batches."""
        return max((part.peak_bytes for part in self.parts), default=0)

    def in_order(self, outputs: Iterable[Tensor]) -> Tensor:
        """Join the micro-batches' per-sample outputs, in the order of the batch.

        Args:
            outputs: one tensor for each micro-batch, ``[its samples, ...]``, in the order of the split.

        Returns:
            ``[all samples, ...]``
        """
        indices = torch.tensor([index for part in self.parts for index in part.indices])
        joined = torch.cat(list(outputs))
        return joined[indices.argsort().to(joined.device)]


def counted(micro_batches: int) -> str:
    """Return ``1 micro-batch``, ``2 micro-batches``."""
    return f"{micro_batches} micro-batch{'es' if micro_batches != 1 else ''}"


def padding_of(parts: Iterable[Part]) -> float:
    """Return the share of the columns that are padding."""
    parts = list(parts)
    columns = sum(len(part.indices) * part.length for part in parts)
    return 1 - sum(part.count for part in parts) / columns if columns else 0.0


def pack(
    samples: Samples, among: Sequence[int], estimate: Estimate, available: int, *, limit: int
) -> list[Part]:
    """Split samples into micro-batches of equal size or, if lengths are known, of the least total cost.

    A pass may hold ``available`` bytes and ``limit`` samples.

    Raises:
        BudgetError: one sample does not fit.
    """
    if not among:
        return []
    if samples.lengths is None:
        order, lengths, counts = list(among), [0] * len(among), [1] * samples.count
    else:
        values, counts = samples.lengths.values, samples.lengths.counts
        order = sorted(among, key=lambda index: (values[index], index))
        lengths = [values[index] for index in order]
    distinct = list(dict.fromkeys(lengths))
    found = estimate.most_samples(available, distinct, min(limit, len(among)))
    fits = dict(zip(distinct, found, strict=True))
    too_large = [(index, length) for index, length in zip(order, lengths, strict=True) if fits[length] < 1]
    if too_large:
        index, length = max(too_large, key=lambda pair: pair[1])
        of_length = f", of length {length}," if length else ""
        (needed,) = estimate.peaks([1], [length])
        raise BudgetError(
            f"plan: sample {index}{of_length} needs {format_bytes(needed)} for one forward and backward pass, but "
            f"the budget leaves {format_bytes(available)}. A sample cannot be split: recompute activations "
            "(torch.utils.checkpoint), shorten the sample, freeze a part of the model, or raise the budget."
        )
    most = [fits[length] for length in lengths]
    if samples.lengths is None:
        ends = even_split(len(order), most[0])
    else:
        cost = estimate.costs(distinct)
        ends = cheapest_split([cost[length] for length in lengths], most, estimate.start)
    spans = list(pairwise([0, *ends]))
    longest = [lengths[end - 1] for _, end in spans]
    peaks = estimate.peaks([end - begin for begin, end in spans], longest)
    return [
        Part(order[begin:end], length, sum(counts[index] for index in order[begin:end]), peak)
        for (begin, end), length, peak in zip(spans, longest, peaks, strict=True)
    ]


def cheapest_split(costs: Sequence[float], most: Sequence[int], start: float) -> list[int]:
    """Return the ends of the micro-batches with the least total cost; the last end is the number of samples.

    Dynamic programming: the best split is one last micro-batch after the best split of all earlier samples. A
    micro-batch is padded to its last sample, so each of its samples costs as much as the last.

    Args:
        costs: the cost of each sample at its length, ascending.
        most: how many samples fit together at each length, at least 1.
        start: the fixed cost of a micro-batch.

    Example:
        >>> cheapest_split([1.0, 1.0, 1.0, 9.0], [4, 4, 4, 4], start=2.0)
        [3, 4]
    """
    count = len(costs)
    best = torch.zeros(count + 1, dtype=torch.float64)
    last_start = [0] * (count + 1)
    sizes = torch.arange(count, 0, -1)
    for end, (cost, limit) in enumerate(zip(costs, accumulate(most, min), strict=True), start=1):
        first = max(end - limit, 0)
        totals = best[first:end] + sizes[count - end + first :] * cost
        last_start[end] = first + int(totals.argmin())
        best[end] = totals[last_start[end] - first] + start
    ends = [count]
    while last_start[ends[-1]]:
        ends.append(last_start[ends[-1]])
    return ends[::-1]


def even_split(count: int, most: int) -> list[int]:
    """Return the ends of the fewest micro-batches of equal size: 100 samples, at most 32 each, make four of 25."""
    parts = -(-count // most)
    return [-(-count * part // parts) for part in range(1, parts + 1)]


def deal(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Return each rank's samples, given each sample's work. Two ranks' numbers of samples differ by at most one.

    Each round gives one sample to every rank, the most costly sample to the rank with the least work so far. The
    work of two ranks therefore differs by less than one sample. Each rank gets the same mixture of lengths, so its
    micro-batches need as little padding as those of the whole batch.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    order = sorted(range(len(work)), key=lambda index: -work[index])
    for start in range(0, len(order), ranks):
        least_loaded = sorted(range(ranks), key=lambda rank: loads[rank])
        for index, rank in zip(order[start : start + ranks], least_loaded, strict=False):
            dealt[rank].append(index)
            loads[rank] += work[index]
    return [sorted(indices) for indices in dealt]
