"""Packs the samples of a batch into micro-batches, and distributes samples over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gradgate.byte_sizes import format_bytes
from gradgate.errors import BudgetError
from gradgate.planning._estimate import Estimate
from gradgate.planning._samples import Samples

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class MicroBatch(Generic[T]):
    """Some samples of a batch, for one forward and backward pass.

    Attributes:
        indices: the indices of its samples in the batch, in the order of the micro-batch.
        length: the number of columns after trimming; 0 if it is not trimmed.
        count: valid items: the sum of the samples' lengths, or the number of samples if they have no lengths.
        peak_bytes: the estimated peak of its forward and backward pass, without resident memory.
        samples: the batch, read as samples.
    """

    indices: tuple[int, ...]
    length: int
    count: int
    peak_bytes: int
    samples: Samples

    @property
    def data(self) -> T:
        """The samples, in the batch's own types. Assembled when it is read, to save memory."""
        taken: T = self.samples.take(self.indices, self.length)
        return taken

    def __repr__(self) -> str:
        length = f" of length {self.length}" if self.length else ""
        return f"MicroBatch({len(self.indices)} samples{length}, count={self.count})"


class Split(tuple[MicroBatch[T], ...]):
    """The micro-batches of a batch."""

    __slots__ = ()

    def __repr__(self) -> str:
        samples = sum(len(part.indices) for part in self)
        return f"Split({samples} samples in {counted(len(self))})"

    @property
    def padding(self) -> float:
        """The share of the columns that are padding; 0 without lengths."""
        columns = sum(len(part.indices) * part.length for part in self)
        return 1 - sum(part.count for part in self) / columns if columns else 0.0

    @property
    def peak_bytes(self) -> int:
        """The largest estimated peak of its micro-batches."""
        return max((part.peak_bytes for part in self), default=0)

    def in_order(self, outputs: Iterable[Tensor]) -> Tensor:
        """Join the micro-batches' per-sample outputs, in the order of the batch.

        Args:
            outputs: one tensor for each micro-batch, ``[its samples, ...]``, in the order of the split.

        Returns:
            ``[all samples, ...]``
        """
        indices = torch.tensor([index for part in self for index in part.indices])
        joined = torch.cat(list(outputs))
        return joined[indices.argsort().to(joined.device)]


def counted(micro_batches: int) -> str:
    """Return ``1 micro-batch``, ``2 micro-batches``."""
    return f"{micro_batches} micro-batch{'es' if micro_batches != 1 else ''}"


def pack(
    samples: Samples, among: Sequence[int], estimate: Estimate, available: int, most_columns: int
) -> Split[Any]:
    """Split samples into micro-batches of equal size or, if lengths are known, of the least total cost.

    A pass may hold ``available`` bytes and, unless it is of one sample, ``most_columns`` columns.

    Raises:
        BudgetError: one sample does not fit.
    """
    if samples.lengths is None:
        order, lengths, counts = list(among), [0] * len(among), [1] * samples.count
    else:
        values, counts = samples.lengths.values, samples.lengths.counts
        order = sorted(among, key=lambda index: (values[index], index))
        lengths = [values[index] for index in order]
    distinct = list(dict.fromkeys(lengths))
    fits = dict(zip(distinct, estimate.most_samples(available, distinct, len(among)), strict=True))
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
    most = [min(fits[length], max(most_columns // max(length, 1), 1)) for length in lengths]
    if samples.lengths is None:
        ends = even_split(len(order), most[0]) if order else []
    else:
        cost = estimate.costs(distinct)
        ends = cheapest_split([cost[length] for length in lengths], most, estimate.start)
    spans = [(begin, end) for begin, end in pairwise([0, *ends]) if end]
    longest = [lengths[end - 1] for _, end in spans]
    peaks = estimate.peaks([end - begin for begin, end in spans], longest)
    return Split(
        MicroBatch(tuple(order[begin:end]), length, sum(counts[i] for i in order[begin:end]), peak, samples)
        for (begin, end), length, peak in zip(spans, longest, peaks, strict=True)
    )


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
