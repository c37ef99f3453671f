"""The oracle: what each micro-batch weighs in its window, and which hypothesis about the windows fits best.

The gradient of a window equals that of its whole batch if the weights of its micro-batches' means add up to 1 and
each item has the same weight. :func:`fits` takes all windows of one line together, compares them with this and with
the usual mistakes, and returns one :class:`Fit` for each line: one cause, whichever rule reports it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate, groupby, pairwise
from operator import mul

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run, once
from gradgate.checker.excuses import several_losses
from gradgate.events import Ids, Site, Term

UNEQUAL = 1.05
"""Ratio of items' weights from which they differ. The last batch of an epoch may be a few items short."""


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

    def divisors(self, size: int) -> list[tuple[float, Site]]:
        """Return the whole numbers that divide the term, and their lines. Other factors are loss weights.

        Multiplying by 1 / size counts as dividing. A trainer's division and a factor that undoes it cancel out, and
        of ``loss * (4 / items)`` only the product counts.
        """
        found = [(number, site) for op, number, site in self.numbers if op == "div" and abs(number) > 1]
        for op, number, site in self.numbers:
            if op == "mul" and number and _close(1 / abs(number), size):
                found.append((float(size), site))
            undone = next((pair for pair in found if op == "mul" and _close(abs(number), pair[0])), None)
            if undone is not None and abs(number) > 1:
                found.remove(undone)
        whole = math.prod(number for number, _ in found)
        if len(found) > 1 and _is_whole(whole) and not all(_is_whole(number) for number, _ in found):
            return [(whole, found[0][1])]
        return [pair for pair in found if _is_whole(pair[0])]

    def divided_by(self, number: int) -> Site | None:
        """Return where the term is divided by this number, or None."""
        return next((site for value, site in self.divisors(number) if _close(value, number)), None)


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
        unscaled = event.scaler is not None and not all(term.scaled for term in event.terms)
        if not event.seen or len(factors) > 1 or unscaled:
            return None
        (by_hand,) = factors
        found.append([_times(share, abs(by_hand)) for share in shares(run.terms(number, window.parameters))])
    return found


def _times(share: Share, by_hand: float) -> Share:
    if by_hand in (0, 1):
        return share
    return replace(
        share,
        factor=None if share.factor is None else share.factor * by_hand,
        per_item=share.per_item * by_hand,
        numbers=(*share.numbers, ("div", 1 / by_hand, ())),
    )


def columns_of(run: Run, window: StepWindow, micro: Sequence[int]) -> list[list[Share]]:
    """Return a list for each term, with its share in each backward call; [] if unknown or if the terms differ."""
    rows = of_window(run, window, micro) if micro else None
    if not rows or len({len(row) for row in rows}) != 1:
        return []
    return [list(column) for column in zip(*rows, strict=True)]


def total(column: Sequence[Share]) -> float:
    """Return the sum of the weights of a term's means: 1 for the gradient of the whole batch."""
    return sum(share.factor or 0.0 for share in column)


def is_one(column: Sequence[Share]) -> bool:
    """Return whether the weights of a term's means add up to 1."""
    return abs(total(column) - 1) < 1e-3


class Kind(Enum):
    """What is wrong with the windows of a line."""

    RIGHT = auto()  # or unknown
    FIRST = auto()  # the first window ends after one micro-batch
    LEFT = auto()  # no step uses the micro-batches after the last window
    CARRIED = auto()  # micro-batches left at the end of an epoch are added to the next window
    OFF = auto()  # the windows are not those that the divisor counts
    UNDIVIDED = auto()  # means are added up
    DIVISOR = auto()  # means are divided by another number than that of the window's micro-batches
    TERM = auto()  # one term is undivided, the others are divided
    UNEQUAL = auto()  # items in small micro-batches weigh more
    SHORT = auto()  # shorter windows are divided by the size of a whole one


@dataclass(frozen=True)
class Fit:
    """The hypothesis that fits the windows of a line best.

    Attributes:
        size: micro-batches in most windows.
        count: windows that show the mistake.
        left: length of each row of micro-batches that no step used.
        column: the shares of one term in the window that shows the mistake best.
    """

    kind: Kind
    optimizer: int
    site: Site
    windows: list[tuple[StepWindow, list[int]]]
    size: int
    divisor: float | None
    count: int
    left: list[int]
    column: Sequence[Share] = ()

    @property
    def sizes(self) -> list[int]:
        """The number of micro-batches in each window."""
        return [len(micro) for _, micro in self.windows]

    @property
    def parameters(self) -> Ids:
        """The parameters that the windows train."""
        return self.windows[0][0].parameters

    @property
    def computed(self) -> Site:
        """Where the script computes the loss that a trainer back-propagates; () if the line itself says."""
        where = self.column[0].term.site if self.column else ()
        return where if where[:1] != self.site[:1] else ()


@once
def fits(run: Run) -> list[Fit]:
    """Return the best fit for each line that calls backward several times in some window."""
    return [_fit(run, optimizer, site, windows) for optimizer, site, windows in run.accumulating()]


def _fit(run: Run, optimizer: int, site: Site, windows: list[tuple[StepWindow, list[int]]]) -> Fit:
    columns = [columns_of(run, window, micro) for window, micro in windows]
    sizes, left = [len(micro) for _, micro in windows], _left_over(run, optimizer, site)
    usual, size = max((times, size) for size, times in Counter(sizes).items())
    divisor = _divisor(columns, size)
    fit = Fit(Kind.RIGHT, optimizer, site, windows, size, divisor, 0, left)
    shape = _wrong_windows(fit, usual, columns)
    if shape is not None:
        return shape
    if several_losses(run, [pair for pair in windows if len(pair[1]) == size > 1]):
        return fit
    return _wrong_weights(run, fit, columns) or _wrong_items(fit, columns) or fit


def _left_over(run: Run, optimizer: int, site: Site) -> list[int]:
    """Return the length of each sequence of consecutive backward calls at this line that no step used."""
    held = run.held(optimizer)

    def is_unused(number: int) -> bool:
        mine = [part for part in run.by_backward[number] if part.atom & held]
        return bool(mine) and not any(part.consumed for part in mine)

    calls = [n for n in sorted(run.by_backward) if n >= 0 and run.events[n].site == site]
    rows = [(unused, list(row)) for unused, row in groupby(calls, key=is_unused)]
    last = [part for number in rows[-1][1] for part in run.by_backward[number]]
    if run.ended != "finished" and any(part.cleared is None for part in last):
        del rows[-1]  # the script ended early: a step may have followed
    return [len(row) for unused, row in rows if unused]


def _divisor(columns: Sequence[list[list[Share]]], size: int) -> float | None:
    """Return the whole number that all losses are divided by, or None if the divisors differ."""
    found = {
        number
        for window in columns
        for column in window
        for share in column
        for number, _ in share.divisors(size)
    }
    return found.pop() if len(found) == 1 else None


def _wrong_windows(fit: Fit, usual: int, columns: Sequence[list[list[Share]]]) -> Fit | None:
    """Return the hypothesis about the windows' sizes that holds, whatever the losses weigh; else None."""
    sizes, size, left, divisor = fit.sizes, fit.size, fit.left, fit.divisor
    many, planned = usual * 2 >= len(sizes) - 1, _follow_their_windows(columns)
    longer = sum(length > size for length in sizes)
    varied = any(first > size and second > size for first, second in pairwise(sizes))
    if sizes[:2] == [1, size] and size > 1 and many and not planned:
        return replace(fit, kind=Kind.FIRST, count=1 + len(left))
    if size > 1 and left and max(left) < max(sizes):
        carried = longer and len(left) == 1 and not varied
        return replace(
            fit, kind=Kind.CARRIED if carried else Kind.LEFT, count=longer if carried else len(left)
        )
    if size > 1 and longer and not varied and usual * 2 > len(sizes) and not planned:
        return replace(fit, kind=Kind.CARRIED, count=longer)
    if planned or divisor is None:
        return None
    terms = max(map(len, columns))  # `(a + b) / 2` is the mean of two terms
    whole = sum(len(window.micro) == divisor for window, _ in fit.windows) * 2 > len(sizes)
    close = abs(size - divisor) == 1 and usual * 2 > len(sizes)
    mixed = min(sizes) < divisor < max(sizes)
    if divisor != terms and not whole and (close or mixed):
        return replace(fit, kind=Kind.OFF, count=sum(length != divisor for length in sizes))
    return None


def _follow_their_windows(columns: Sequence[list[list[Share]]]) -> bool:
    """Return whether sizes vary on purpose: a term is divided by a number that depends on its window."""
    return any(map(_follows, zip(*filter(None, columns), strict=False)))


def _follows(windows: Sequence[list[Share]]) -> bool:
    weights: dict[int, set[float]] = {}
    for column in windows:
        if not all(share.factor is not None for share in column):
            if len({share.per_item for share in column}) > 1 or not column[0].numbers:
                return False  # sums divided by their window's items weight all items equally
        elif not is_one(column):
            return False
        weights.setdefault(len(column), set()).update(share.per_item for share in column)
    return len(weights) > 1 and len(set().union(*weights.values())) >= sum(map(len, weights.values()))


def _wrong_weights(run: Run, fit: Fit, columns: Sequence[list[list[Share]]]) -> Fit | None:
    """Return the hypothesis that makes the weights of whole windows add up to another number than 1."""
    size = fit.size
    full = [each for each in columns if size > 1 and each and len(each[0]) == size]
    means = [(column, len(window)) for window in full for column in window if column[0].factor is not None]
    if not means:
        return None
    divided = [column for column, _ in means if column[0].divided_by(size) is not None]
    if divided and (apart := _undivided_term(run, fit)):
        return replace(fit, kind=Kind.TERM, count=len(full), column=[apart])
    if not all(_is_wrong(column, size, terms) for column, terms in means):
        return None
    column = min((column for column, _ in means), key=lambda column: len(column[0].divisors(size)))
    if column[0].divisors(size):
        if fit.divisor is not None and abs(fit.divisor - size) == 1:
            return None
        return replace(fit, kind=Kind.DIVISOR, count=len(full), column=column)
    whole = max(means, key=lambda pair: total(pair[0]))[0]  # the other terms have weights
    together = sum(share.factor or 0.0 for share in (column[0] for column in full[0]))
    if _close(total(whole), size, 1e-3) or _close(together, 1, 1e-3):
        return replace(fit, kind=Kind.UNDIVIDED, count=len(full), column=whole)
    return None


def _is_wrong(column: Sequence[Share], size: int, terms: int) -> bool:
    """Return whether a term's means don't add up to 1, and no loss weight explains the difference."""
    if is_one(column):
        return False
    times = sum(_close(number, size) for number, _ in column[0].divisors(size))
    # With one division by the size, other factors are loss weights. One of two may be a mean of terms, or a weight.
    weights = sum(
        op == "mul" and bool(number) and _close(1 / abs(number), size) for op, number, _ in column[0].numbers
    )
    return times != 1 and not (times == 2 and (terms == size or weights == 1))


def _undivided_term(run: Run, fit: Fit) -> Share | None:
    """Return a term that each micro-batch adds undivided, beside terms that are divided by the window's size."""
    found: Share | None = None
    for window, micro in fit.windows:
        if len(micro) != fit.size or any(part.touched or part.factor != 1 for part in window.fresh):
            continue
        for number in micro:
            terms = [term for term in run.terms(number, window.parameters) if term.kind != "constant"]
            parts = [Share(term, None, 0.0, None, term.factors) for term in terms]
            others = [part for part in parts if part.divided_by(fit.size) is None]
            if not others or any(op == "div" for part in others for op, _, _ in part.numbers):
                return None
            found = found or others[0]
    return found


def _wrong_items(fit: Fit, columns: Sequence[list[list[Share]]]) -> Fit | None:
    """Return the hypothesis that gives the items of a window, or of a short window, different weights."""
    unequal = [column for window in columns for column in window if _is_unequal(column)]
    if unequal:
        worst = max(unequal, key=lambda column: spread(share.per_item for share in column))
        count = sum(any(map(_is_unequal, window)) for window in columns)
        return replace(fit, kind=Kind.UNEQUAL, count=count, column=worst)
    whole = fit.sizes.count(fit.size) * 2 >= len(fit.sizes)  # else the sizes vary for another reason
    short = [window for window in columns if whole and window and len(window[0]) < fit.size]
    short = [
        window
        for window in short
        if not any(map(is_one, window)) and all(share.divided_by(fit.size) is not None for share in window[0])
    ]
    if short:
        return replace(fit, kind=Kind.SHORT, count=len(short), column=short[0][0])
    return None


def items_of(share: Share) -> float | None:
    """Return the number of items in a mean. For a plain sum, return its divisor, by which each item is divided."""
    if share.items is not None:
        return share.items
    return max((number for op, number, _ in share.numbers if op == "div" and number > 1), default=None)


def _is_unequal(column: Sequence[Share]) -> bool:
    counts = [items_of(share) for share in column]
    if len(column) < 2 or None in counts or len({share.term.site for share in column}) > 1:
        return False
    per_item = spread(share.per_item for share in column)
    # Only weights that follow the number of items: other weights may be intended.
    return per_item > UNEQUAL and abs(per_item / spread(count or 1.0 for count in counts) - 1) < 0.02
