"""The weights of a micro-batch in its window: of its whole loss and of each item."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run
from gradgate.events import Site, Term


@dataclass(frozen=True)
class Share:
    """The weight of one term in one backward call.

    Attributes:
        factor: weight of the term's mean in the loss; None for a plain sum.
        per_item: weight of one item.
        items: number of items, if known.
        numbers: factors between the term and the loss, without the factor that turns a sum into a mean.
    """

    term: Term
    factor: float | None
    per_item: float
    items: float | None
    numbers: tuple[tuple[str, float, Site], ...]
    averaged_at: Site = ()  # where the script divides a sum to get a mean

    @property
    def divisors(self) -> list[tuple[float, Site]]:
        """The divisors of the term, and their lines. Multiplying by a fraction counts as dividing.

        A trainer's division and a factor that undoes it cancel out.
        """
        found, times = [], []
        for op, number, site in self.numbers:
            value = abs(number) if op == "div" else (1 / abs(number) if number else math.inf)
            if value > 1:
                found.append((value, site))
            elif 0 < value < 1:
                times.append(1 / value)
        for factor in times:
            undone = next((pair for pair in found if _close(pair[0], factor)), None)
            if undone is not None:
                found.remove(undone)
        whole = math.prod(value for value, _ in found)
        if len(found) > 1 and _is_whole(whole) and not all(_is_whole(value) for value, _ in found):
            # `loss * (4 / items)`: only the product of both factors counts the items.
            return [(whole, found[0][1])]
        return found

    def divided_by(self, number: float) -> Site | None:
        """Return where the term is divided by this number, or None."""
        return next((site for value, site in self.divisors if abs(value - number) < 1e-6 * number), None)


def shares(terms: Iterable[Term]) -> list[Share]:
    """Return the shares of the terms that are means or sums over a batch's items."""
    found = []
    for term in terms:
        if term.kind == "mean" and term.items:
            weight = abs(term.weight)
            found.append(Share(term, weight, weight / term.items, term.items, term.factors))
        elif term.kind == "sum" and not term.squares:
            found.append(_of_sum(term))
    return found


def _of_sum(term: Term) -> Share:
    """Return a sum's share. A sum that is divided by its number of items, or by a size of its input, is a mean."""
    weight = abs(term.weight)
    divisions = [place for place, (op, number, _) in enumerate(term.factors) if op == "div" and number > 1]
    by_items = [place for place in divisions if term.items and _close(term.factors[place][1], term.items)]
    batch_sizes = list(accumulate(term.sizes, mul))  # products of the first 1, 2, ... dimensions
    for place in (by_items or divisions)[-1:]:  # the division nearest to the sum
        _, number, where = term.factors[place]
        if by_items or any(_close(number, size) for size in batch_sizes):
            rest = (*term.factors[:place], *term.factors[place + 1 :])
            return Share(term, weight * number, weight, number, rest, where)
    return Share(term, None, weight, None, term.factors)


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and _close(value, round(value))


def _close(value: float, other: float, tolerance: float = 1e-6) -> bool:
    return abs(value - other) <= tolerance * max(abs(value), abs(other))


def spread(values: Iterable[float]) -> float:
    """Return the largest value divided by the smallest: 1 if all values are equal."""
    known = [abs(value) for value in values]
    low, high = min(known), max(known)
    return high / low if low else math.inf


def listed(items: Sequence[float | None]) -> str:
    """Return the first few numbers of items as text: "8, 12, 3, ..."."""
    return ", ".join(f"{count or 0:g}" for count in items[:6]) + ", ..." * (len(items) > 6)


def of_window(run: Run, window: StepWindow, micro: Sequence[int]) -> list[list[Share]] | None:
    """Return each backward call's shares, times the factors applied to its gradients; None if these are unknown."""
    by_backward: dict[int, set[float]] = {}
    for contribution in window.fresh:
        if contribution.touched:
            return None
        by_backward.setdefault(contribution.backward, set()).add(contribution.factor)
    found = []
    for number in micro:
        event = run.backward(number)
        factors = by_backward.get(number, {1.0})
        if (
            not event.seen
            or len(factors) > 1
            or (event.scaler is not None and not all(each.scaled for each in event.terms))
        ):
            return None
        (by_hand,) = factors
        found.append([_times(share, abs(by_hand)) for share in shares(run.terms(number, window.parameters))])
    return found


def _times(share: Share, by_hand: float) -> Share:
    if by_hand == 1:
        return share
    return replace(
        share,
        factor=None if share.factor is None else share.factor * by_hand,
        per_item=share.per_item * by_hand,
        numbers=(*share.numbers, ("mul", by_hand, ())),
    )


def columns_of(run: Run, window: StepWindow, micro: Sequence[int]) -> list[list[Share]]:
    """Return a list for each term, with its share in each backward call; [] if unknown or if the terms differ."""
    rows = of_window(run, window, micro) if micro else None
    if not rows or len({len(row) for row in rows}) != 1:
        return []
    return [list(column) for column in zip(*rows, strict=True)]


def adds_up_to_one(run: Run, window: StepWindow, micro: Sequence[int]) -> bool:
    """Return whether the weights of any term add up to 1 over a window."""
    columns = columns_of(run, window, micro)
    return any(_close(sum(share.factor or 0.0 for share in column), 1, 1e-3) for column in columns)
