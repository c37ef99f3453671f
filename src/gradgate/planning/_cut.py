"""The cheapest cut of sorted lengths into micro-batches that fit: exactly, by dynamic programming.

Write ``w`` for the cost of a sample at the length to which it is padded. A micro-batch of the samples ``i .. j-1``,
in ascending order of length, costs ``start + (j - i) * w[j-1]``, for all of them are padded to the last. This cost
has the Monge property (w ascends), also with the limit on samples, which descends: so the best last cut never moves
backwards, and a queue of candidates finds it in O(n log n).

Source: Z. Galil, K. Park, "A linear-time algorithm for concave one-dimensional dynamic programming" (1990).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence


def cheapest_cut(costs: Sequence[float], most: Sequence[int], start: float) -> list[int]:
    """Return where the micro-batches end: ascending, the last is the number of samples.

    Args:
        costs: of a sample at each length, ascending.
        most: samples of each length that fit together, at least 1.
        start: what each micro-batch costs by itself.

    Example:
        >>> cheapest_cut([1.0, 1.0, 1.0, 9.0], [4, 4, 4, 4], start=2.0)
        [3, 4]
    """
    count = len(costs)
    limits = _descending(most)
    until = _last_fitting(limits)  # until[i]: the largest j for which the samples i .. j-1 fit
    best = [0.0] * (count + 1)
    before = [0] * (count + 1)
    queue: deque[tuple[int, int]] = deque([(0, 1)])  # a candidate, and the j from which on it is the best one
    for j in range(1, count + 1):
        while len(queue) > 1 and queue[1][1] <= j:
            queue.popleft()
        i = queue[0][0]
        best[j] = best[i] + start + (j - i) * costs[j - 1]
        before[j] = i
        if j == count:
            break
        since = j + 1
        while queue:
            other, other_since = queue[-1]
            # From this cost of a sample on the later candidate wins; or where the earlier one holds too many.
            turning = (best[j] - best[other]) / (j - other)
            takes_over = min(bisect_left(costs, turning, j) + 1, until[other] + 1)
            if takes_over > max(other_since, j + 1) and takes_over > j + 1:
                since = takes_over
                break
            queue.pop()
        if since <= count:
            queue.append((j, since if queue else j + 1))
    ends = [count]
    while before[ends[-1]]:
        ends.append(before[ends[-1]])
    return ends[::-1] if count else []


def even_cut(count: int, most: int) -> list[int]:
    """Return where the fewest micro-batches of equal size end: 100 samples, 32 at most, are four of 25."""
    parts = -(-count // most)
    return [-(-count * part // parts) for part in range(1, parts + 1)]


def _descending(most: Sequence[int]) -> list[int]:
    limits, least = [], most[0] if most else 1
    for limit in most:
        least = min(least, limit)
        limits.append(max(least, 1))
    return limits


def _last_fitting(limits: Sequence[int]) -> list[int]:
    until, j = [], 0
    for i in range(len(limits)):
        j = max(j, i + 1)
        while j < len(limits) and j + 1 - i <= limits[j]:
            j += 1
        until.append(j)
    return until
