"""Deal the samples of a window to ranks, so that these finish together."""

from __future__ import annotations

from collections.abc import Sequence


def deal(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Return each rank's samples: equal numbers of them, to one, and nearly equal work.

    Samples of similar work go to different ranks, the most laborious first, each to the rank that has the least so
    far. So ranks differ by less than the work of one sample, and each has the same mixture, which leaves its own
    micro-batches as little padding as the whole window's.

    Args:
        work: of each sample, in any unit. Equal ones are dealt in turn.
        ranks: how many there are.
    """
    hands: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    order = sorted(range(len(work)), key=lambda index: -work[index])
    for start in range(0, len(order), ranks):
        waiting = sorted(range(ranks), key=lambda rank: loads[rank])
        for index, rank in zip(order[start : start + ranks], waiting, strict=False):
            hands[rank].append(index)
            loads[rank] += work[index]
    return [sorted(hand) for hand in hands]
