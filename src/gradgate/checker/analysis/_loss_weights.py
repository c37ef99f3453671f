"""What one micro-batch's loss counts in its window: its factor, and what it gives to each of its items."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._history import Window
from gradgate.checker.analysis._run import Run
from gradgate.events import Site, Term


@dataclass(frozen=True)
class Share:
    """A term of one backward call. ``factor`` is what its mean counts in the loss; None where it is a plain sum.

    ``per_item`` is what one item counts; ``items`` how many there are, where that is known. ``numbers`` are the
    factors on the way to the root, the one left out that makes a mean of a sum.
    """

    term: Term
    factor: float | None
    per_item: float
    items: float | None
    numbers: tuple[tuple[str, float, Site], ...]
    averaged_at: Site = ()  # where a sum is made a mean by hand

    @property
    def divisors(self) -> list[tuple[float, Site]]:
        """What it is divided by, products with fractions included."""
        found = []
        for op, number, site in self.numbers:
            value = number if op == "div" else (1 / number if number else math.inf)
            if value > 1:
                found.append((value, site))
        return found


def shares(terms: Iterable[Term]) -> list[Share]:
    """Return the shares of those terms that are means or sums of a batch's items."""
    found = []
    for term in terms:
        if term.kind == "mean" and term.items:
            weight = abs(term.weight)
            found.append(Share(term, weight, weight / term.items, term.items, term.factors))
        elif term.kind == "sum" and not term.squares:
            found.append(_of_sum(term))
    return found


def _of_sum(term: Term) -> Share:
    """A sum that is divided by a size of what was summed is a mean written by hand."""
    weight = abs(term.weight)
    for place in reversed(
        range(len(term.factors))
    ):  # the division nearest to the sum is the one that averages
        op, number, where = term.factors[place]
        if op == "div" and number > 1 and any(_close(number, size) for size in _leading(term.sizes)):
            rest = (*term.factors[:place], *term.factors[place + 1 :])
            return Share(term, weight * number, weight, number, rest, where)
    return Share(term, None, weight, None, term.factors)


def _leading(sizes: tuple[int, ...]) -> Iterator[int]:
    """Yield the sizes that an author means by "the batch": the first dimension, the first two, ..., all."""
    size = 1
    for one in sizes:
        size *= one
        yield size


def _close(one: float, other: float, tolerance: float = 1e-6) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def spread(values: Iterable[float]) -> float:
    """Return the largest value over the smallest: 1 where all are equal."""
    known = [abs(value) for value in values]
    low, high = min(known), max(known)
    return high / low if low else math.inf


def of_window(run: Run, window: Window, micro: list[int]) -> list[list[Share]] | None:
    """Return the shares of each backward call, with what was multiplied by hand; None where that is not known."""
    by_backward: dict[int, set[float]] = {}
    for one in window.fresh:
        if one.touched:
            return None
        by_backward.setdefault(one.backward, set()).add(one.factor)
    found = []
    for number in micro:
        event = run.backward(number)
        factors = by_backward.get(number, {1.0})
        if not event.seen or len(factors) > 1 or (event.scaler is not None and not _whole(event.terms)):
            return None
        (by_hand,) = factors
        found.append([_times(share, abs(by_hand)) for share in shares(event.terms)])
    return found


def _whole(terms: Iterable[Term]) -> bool:
    return all(term.scaled for term in terms)


def _times(share: Share, by_hand: float) -> Share:
    if by_hand == 1:
        return share
    factor = None if share.factor is None else share.factor * by_hand
    numbers = (*share.numbers, ("mul", by_hand, ()))
    return Share(share.term, factor, share.per_item * by_hand, share.items, numbers, share.averaged_at)


def by_place(rows: list[list[Share]]) -> list[list[Share]]:
    """Turn one list for each backward call into one for each term; empty where the calls have different terms."""
    if len({len(row) for row in rows}) != 1:
        return []
    return [list(column) for column in zip(*rows, strict=True)]
