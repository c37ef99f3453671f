"""Finds a mean over the ranks that is taken twice: for the gradients, and in the loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import text_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ranks._means import LEAST, RANKS, averaged, combined_side_by_side
from gradgate.events import Site, Term, Written


def divided_twice(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report losses and gradients divided by the number of ranks although gradients are averaged over the ranks."""
    found = grouped(
        (place, window)
        for window in run.windows
        if averaged(run, window)
        for place in {*_in_the_loss(run, window), *_in_the_gradients(run, window)}
    )
    for (site, what), windows in found.items():
        if len(windows) < 2:
            continue
        yield rule.finding(
            site,
            f"The {what} is divided by {run.log.world}, the number of ranks, and the gradients are averaged over "
            f"the ranks as well, in {len(windows)} steps.",
            why=f"The gradient is {run.log.world} times too small.",
            advice=f"Don't divide the {what}: the gradients are already averaged over the ranks"
            + (" when backward() returns." if what == "gradient" else "."),
            severity="error",
            count=len(windows),
            evidence={"ranks": run.log.world, "steps": len(windows)},
            about=windows[0].parameters,
        )


def _in_the_loss(run: Run, window: StepWindow) -> Iterator[tuple[Site, str]]:
    for term in (term for number in window.micro for term in run.backward(number).terms):
        for op, divisor, site in term.factors if not _undone(run, term) else ():
            ranks = divisor if op == "div" else 1 / divisor if divisor else 0.0
            if _divides_by_ranks(run, ranks, site):
                yield site, "loss"


def _in_the_gradients(run: Run, window: StepWindow) -> Iterator[tuple[Site, str]]:
    events = [run.backward(number) for number in window.micro]
    if not (events and events[-1].synced) or any(event.managed for event in events):
        return
    if any(_undone(run, term) for event in events for term in event.terms):
        return
    for event in run.events[min(window.micro) : window.step]:
        if not isinstance(event, Written) or event.target != "gradient" or not event.factor:
            continue
        if event.parameters & window.parameters and _divides_by_ranks(run, 1 / event.factor, event.site):
            yield event.site, "gradient"


def _undone(run: Run, term: Term) -> bool:
    """Return whether a loss is multiplied by the number of ranks, which turns the mean over ranks into a sum."""
    return any(op == "mul" and _is_multiple(number, run.log.world) for op, number, _ in term.factors)


def _divides_by_ranks(run: Run, divisor: float, site: Site) -> bool:
    """Return whether a divisor is the number of ranks or a multiple, and the source line names it so."""
    return _is_multiple(divisor, run.log.world) and bool(RANKS.search(text_of(innermost(site))))


def _is_multiple(number: float, ranks: int) -> bool:
    times = number / ranks
    return times >= 1 and abs(times - round(times)) < 1e-6


def divided_by_all_items(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report losses divided by the items of all ranks although gradients are averaged over the ranks."""
    found: dict[Site, list[float]] = defaultdict(list)
    for pairs in (pairs for how, pairs in combined_side_by_side(runs) if how == "averaged"):
        terms = [
            term
            for run, window in pairs
            for number in window.micro
            for term in run.backward(number).terms
            if term.kind == "sum" and term.items and not _undone(run, term)
        ]
        items = sum(term.items or 0.0 for term in terms)
        divided = [
            site for term in terms for op, number, site in term.factors if op == "div" and number == items
        ]
        if items and len(divided) == len(terms) and len(set(divided)) == 1:
            found[divided[0]].append(items)
    ranks = len(runs)
    for site, totals in found.items():
        # A constant number may count the items of one half of a mean, where the division is often intended.
        if len(totals) >= LEAST and len(set(totals)) > 1:
            yield rule.finding(
                site,
                f"The loss is divided by the items of all {ranks} ranks together, and the gradients are averaged "
                f"over the ranks as well, in {len(totals)} steps.",
                why=f"The gradient is {ranks} times too small.",
                advice="Multiply the loss by the number of ranks: averaging over the ranks divides by the same "
                "number.",
                severity="error",
                count=len(totals),
                evidence={"ranks": ranks, "steps": len(totals)},
            )
