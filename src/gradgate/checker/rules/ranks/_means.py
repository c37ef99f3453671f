"""How gradients are combined over the ranks, and means over unequal numbers of items on the ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._oracle import UNEQUAL, Share, columns_of, listed, spread
from gradgate.checker.analysis._queries import windows_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import Ids, Reduced, Site, Written

LEAST = 3  # steps, or backward calls: fewer may be an accident of the run's start or end
_EQUAL = 1e-6  # relative: the values are compared by norms


def sums_over_ranks(event: Reduced) -> bool:
    """Return whether a collective sums over the ranks."""
    other = ("avg", "max", "min", "product")
    return event.op.startswith("all_reduce") and not any(name in event.op for name in other)


def reduced_between(run: Run, start: int, stop: int, atom: Ids) -> tuple[list[Reduced], float]:
    """Return the collectives of these gradients between two events, and the total factor applied by hand."""
    reduced, factor = [], 1.0
    for event in run.events[start:stop]:
        if isinstance(event, Reduced) and event.parameters & atom:
            reduced.append(event)
        elif isinstance(event, Written) and event.target == "gradient" and event.parameters & atom:
            factor *= event.factor if event.factor is not None else 1.0
    return reduced, factor


def differ(values: Sequence[float]) -> bool:
    """Return whether norms of one parameter on several ranks are unequal."""
    return max(values) - min(values) > _EQUAL * max(map(abs, values))


def averaged(run: Run, window: StepWindow) -> bool:
    """Return whether the gradients that a step uses are means over the ranks."""
    return _combined(run, window) == "averaged"


def _combined(run: Run, window: StepWindow) -> Literal["averaged", "added"] | None:
    """Return how the gradients that a step uses were combined over the ranks; None if unknown."""
    if any(run.backward(number).synced for number in window.micro):
        return "averaged"
    atom: Ids = next((each.atom for each in window.fresh if each.backward >= 0), frozenset())
    reduced, factor = reduced_between(run, min(window.micro, default=window.step), window.step, atom)
    if any("avg" in event.op for event in reduced):
        return "averaged"
    if not any(map(sums_over_ranks, reduced)):
        return None
    return "averaged" if abs(factor * run.log.world - 1) < 1e-3 else "added"


def uneven(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report mean losses whose gradients are averaged or added over ranks with unequal numbers of items."""
    found: dict[tuple[Site, str], list[list[tuple[float, float]]]] = defaultdict(list)
    compared = 0
    for how, pairs in combined_side_by_side(runs):
        compared += 1
        columns = [columns_of(run, window, list(window.micro)) for run, window in pairs]
        if len({len(column) for column in columns}) == 1:
            for of_ranks in zip(*columns, strict=True):
                ranks = [_of_rank(column) for column in of_ranks]
                if len({column[0].term.site for column in of_ranks}) == 1 and _is_unequal(ranks):
                    found[of_ranks[0][0].term.site, how].append(ranks)
                    break
    for (site, combined), unequal in found.items():
        worst = max(unequal, key=lambda ranks: spread(weight / items for weight, items in ranks))
        yield rule.say(
            site,
            texts.RANKS,
            severity=None if len(unequal) * 4 >= compared else "info",  # these may be the ends of epochs
            count=len(unequal),
            listed=listed([count for _, count in worst]),
            items=[count for _, count in worst],
            times=spread(weight / count for weight, count in worst),
            ranks=len(runs),
            combined=combined,
            advice=one_line(runs[0])
            or "Add up the number of items over the ranks with all_reduce and use "
            f"loss.sum(){' * world_size' * (combined == 'averaged')} / items_of_all_ranks, or use "
            "gradgate.Accumulator, which does this.",
        )


def combined_side_by_side(
    runs: Sequence[Run],
) -> Iterator[tuple[Literal["averaged", "added"], list[tuple[Run, StepWindow]]]]:
    """Yield how each step's gradients were combined over the ranks, and each rank's run and window.

    An optimizer's steps are left out if the ranks have different numbers of windows.
    """
    for optimizer in sorted(runs[0].stepping):
        several = [windows_of(run, optimizer) for run in runs]
        if len({len(windows) for windows in several}) == 1:
            for windows in zip(*several, strict=True):
                pairs = list(zip(runs, windows, strict=True))
                first, *others = (_combined(run, window) for run, window in pairs)
                if first is not None and all(each == first for each in others):
                    yield first, pairs


def _of_rank(column: list[Share]) -> tuple[float, float]:
    """Return the total weight and the number of a rank's items, or zeros if unknown."""
    if any(share.items is None for share in column):
        return 0.0, 0.0
    items = sum(share.items or 0.0 for share in column)
    return sum(share.per_item * (share.items or 0.0) for share in column), items


def _is_unequal(ranks: Sequence[tuple[float, float]]) -> bool:
    if not all(weight and items for weight, items in ranks):
        return False
    # Report only weights that follow the number of items: other weights may be intended.
    weights = spread(weight for weight, _ in ranks)
    return spread(items for _, items in ranks) > UNEQUAL and weights < 1.02
