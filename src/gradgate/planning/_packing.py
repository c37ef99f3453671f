"""Put samples together into micro-batches that fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gradgate.errors import BudgetError
from gradgate.planning._budget import written
from gradgate.planning._cut import cheapest_cut, even_cut
from gradgate.planning._estimate import Estimate
from gradgate.planning._micro_batches import Part
from gradgate.planning._samples import Samples


def pack(
    samples: Samples, among: Sequence[int], estimate: Estimate, room: int, start: float, *, limit: int
) -> list[Part]:
    """Return micro-batches of some samples: equally large ones, or with lengths those with the least work.

    Args:
        samples: the batch.
        among: which of its samples.
        estimate: the peak of each micro-batch, and the work.
        room: bytes that a forward and backward pass may hold.
        start: the work of starting a micro-batch, in floating-point operations.
        limit: the most samples in a micro-batch, whatever fits.

    Raises:
        BudgetError: one sample does not fit.
    """
    lengths = samples.lengths
    if lengths is None:
        (most,) = estimate.most_samples(room, [0])
        if most < 1:
            _refuse(0, 0, estimate, room)
        order, each, counts = list(among), [0] * len(among), [1] * samples.count
        ends = even_cut(len(among), min(most, limit))
    else:
        order = sorted(among, key=lambda index: (lengths.values[index], index))
        each, counts = [lengths.values[index] for index in order], lengths.counts
        different = list(dict.fromkeys(each))
        fits = dict(zip(different, estimate.most_samples(room, different), strict=True))
        for index, length in zip(reversed(order), reversed(each), strict=True):
            if fits[length] < 1:
                _refuse(index, length, estimate, room)
        cost = estimate.costs(different)
        most_of_each = [min(fits[length], limit) for length in each]
        ends = cheapest_cut([cost[length] for length in each], most_of_each, start)
    spans = list(pairwise([0, *ends]))
    longest = [each[end - 1] for _, end in spans]
    peaks = estimate.peaks([end - begin for begin, end in spans], longest)
    return [
        Part(order[begin:end], length, sum(counts[index] for index in order[begin:end]), peak)
        for (begin, end), length, peak in zip(spans, longest, peaks, strict=True)
    ]


def _refuse(index: int, length: int, estimate: Estimate, room: int) -> None:
    long = f", of length {length}," if length else ""
    (needed,) = estimate.peaks([1], [length])
    raise BudgetError(
        f"plan: sample {index}{long} needs {written(needed)} for one forward and backward pass, and of the budget "
        f"{written(room)} are left for it. A sample cannot be cut: recompute activations (torch.utils.checkpoint), "
        "shorten the sample, freeze a part of the model, or raise the budget."
    )
