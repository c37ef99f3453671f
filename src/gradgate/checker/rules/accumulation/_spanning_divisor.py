"""Finds sums that are divided by the number of items of several windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Site

_LEAST = 2  # number of divisors that count several windows


class _Part(NamedTuple):
    """A micro-batch whose loss is a sum over a known number of items, which the script divides by a number."""

    window: int
    divisor: float
    items: float
    others: float  # product of the other factors
    site: Site  # line of the division


def spanning_divisors(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report sums that are divided by the total number of items of several windows."""
    parts = [part for place in range(len(run.windows)) for part in _parts(run, place)]
    found: list[tuple[int, _Part]] = []
    for divisor, several in groupby(parts, key=lambda part: (part.divisor, part.site)):
        group = list(several)
        windows = len({part.window for part in group})
        counted = abs(sum(part.items for part in group) - divisor[0]) < 0.5
        if windows > 1 and counted and all(abs(abs(part.others) - 1) < 1e-3 for part in group):
            found.append((windows, group[0]))
    if len(found) < _LEAST:
        return
    windows, part = found[0]
    yield rule.finding(
        part.site,
        f"Each of {len(found)} sums is divided by {part.divisor:g}, the number of items in {windows} windows.",
        why=f"Each step uses only one of these windows, so its gradient is about {windows} times too small.",
        advice="Divide by the items of the micro-batches that one step uses.",
        count=len(found),
        evidence={"windows": windows, "divisor": part.divisor},
    )


def _parts(run: Run, place: int) -> Iterator[_Part]:
    for number in run.windows[place].micro:
        terms = [term for term in run.backward(number).terms if term.kind != "constant"]
        for term in terms if len(terms) == 1 else ():
            divisions = [factor for factor in term.factors if factor[0] == "div"]
            if term.kind == "sum" and term.items is not None and len(divisions) == 1:
                _, divisor, site = divisions[0]
                yield _Part(place, divisor, term.items, term.weight * divisor, site)
