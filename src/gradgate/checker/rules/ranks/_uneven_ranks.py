"""Ranks whose means are over unequal numbers of items, and which count the same: seen from all ranks' runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.analysis._history import Window
from gradgate.checker.analysis._loss_weights import Share, by_place, of_window, spread
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ranks._rank_means import averaged
from gradgate.events import Site

_LEAST = 1.05
_MOSTLY = 4  # one window in so many has to be unequal for an error


def uneven(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report means over the ranks of means over each rank's own items, where these are not equally many."""
    found: dict[Site, list[list[tuple[float, float]]]] = defaultdict(list)
    compared = 0
    for windows in together(runs):
        if not all(averaged(run, window) for run, window in zip(runs, windows, strict=True)):
            continue
        columns = [_columns(run, window) for run, window in zip(runs, windows, strict=True)]
        compared += 1
        if len({len(column) for column in columns}) != 1:
            continue
        for shares in zip(*columns, strict=True):
            ranks = [_of_rank(column) for column in shares]
            if len({column[0].term.site for column in shares}) == 1 and _is_unequal(ranks):
                found[shares[0][0].term.site].append([one for one in ranks if one is not None])
                break
    for site, unequal in found.items():
        worst = max(unequal, key=lambda ranks: spread(weight / items for weight, items in ranks))
        items = [count for _, count in worst]
        shown = ", ".join(f"{count:g}" for count in items[:6]) + (", ..." if len(items) > 6 else "")
        times = spread(weight / count for weight, count in worst)
        yield rule.finding(
            site,
            f"Ranks take means over {shown} items, and their gradients are averaged as if these were equally "
            f"many: an item on the rank with the fewest weighs {times:.3g} times as much as one on that with the "
            "most.",
            why="The mean of the ranks' means is not the mean over all items: those of ranks with few count too "
            "much.",
            advice="Add the items up over the ranks (all_reduce of their number) and use "
            "loss.sum() * world_size / items_of_all_ranks; or gradgate.Accumulator, which does so by itself.",
            # The last batch of an epoch alone, in one step of many: most people would leave it.
            severity=None if len(unequal) * _MOSTLY >= compared else "info",
            count=len(unequal),
            evidence={"items": items, "times": times, "ranks": len(runs)},
        )


def together(runs: Sequence[Run]) -> Iterator[tuple[Window, ...]]:
    """Yield what ranks did at the same time: the windows of each optimizer in their order, if all have as many."""
    by_optimizer = []
    for run in runs:
        windows: dict[int, list[Window]] = defaultdict(list)
        for window in run.windows:
            windows[window.optimizer].append(window)
        by_optimizer.append(windows)
    for optimizer in sorted(by_optimizer[0]):
        several = [windows[optimizer] for windows in by_optimizer]
        if len({len(one) for one in several}) == 1:
            yield from zip(*several, strict=True)


def _columns(run: Run, window: Window) -> list[list[Share]]:
    """Return the shares of a window, by their place in the loss; none where they are not known."""
    rows = of_window(run, window, list(window.micro)) if window.micro else None
    return by_place(rows) if rows else []


def _of_rank(column: list[Share]) -> tuple[float, float] | None:
    """Return what a rank's items weigh together, and how many they are."""
    if any(share.items is None for share in column):
        return None
    items = sum(share.items or 0.0 for share in column)
    return sum(share.per_item * (share.items or 0.0) for share in column), items


def _is_unequal(ranks: Sequence[tuple[float, float] | None]) -> bool:
    known = [one for one in ranks if one is not None and one[0] and one[1]]
    if len(known) < len(ranks):
        return False
    # A weight that follows nothing but the number of items; others are somebody's intention.
    weights = spread(weight for weight, _ in known)
    return spread(count for _, count in known) > _LEAST and weights < 1.02
