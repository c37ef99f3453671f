"""Finds a mean over the ranks that is taken twice: for the gradients, and in the loss or the learning rate."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._origins import computed_rate
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import argument, called, last_name
from gradgate.checker.analysis._source import statement_at, text_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ranks._means import LEAST, RANKS, averaged, is_one_mean, side_by_side
from gradgate.events import Site, Term, Written


def divided_twice(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report losses and gradients divided by the number of ranks although gradients are averaged over the ranks."""
    found: dict[tuple[Site, str], list[StepWindow]] = defaultdict(list)
    for window in run.windows:
        if averaged(run, window):
            for place in {*_in_the_loss(run, window), *_in_the_gradients(run, window)}:
                found[place].append(window)
    for (site, what), windows in found.items():
        if len(windows) < 2:
            continue
        yield rule.finding(
            site,
            f"The {what} is divided by {run.log.world} ranks, and the gradients are averaged over the ranks as "
            f"well, in {len(windows)} steps.",
            why=f"The gradient is {run.log.world} times too small.",
            advice=f"Don't divide the {what}: the gradients are already averaged over the ranks"
            + (", when backward() returns." if what == "gradient" else "."),
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


def rate_divided(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report SGD with a learning rate divided by the number of ranks, if the ranks' mean gradients are averaged."""
    for optimizer, made in run.made.items():
        windows = [window for window in run.windows if window.optimizer == optimizer]
        if len(windows) < LEAST or made[0].kind != "SGD" or not made[0].site:
            continue
        where = computed_rate(made[0].site) or innermost(made[0].site)
        if _divided_rate(statement_at(where)) is not None and all(
            averaged(run, each) and is_one_mean(run, each) for each in windows
        ):
            yield rule.finding(
                where,
                f"The learning rate is divided by {run.log.world} ranks, and the gradients are averaged over the "
                f"ranks as well, in {len(windows)} steps.",
                why=f"The step is {run.log.world} times too small: this division is right only for summed "
                "gradients.",
                advice="Don't divide the learning rate: the gradients are already averaged over the ranks.",
                fix=_undivided_rate,
                count=len(windows),
                evidence={"ranks": run.log.world, "steps": len(windows)},
            )


def _divided_rate(statement: ast.AST | None) -> ast.BinOp | None:
    """Return the learning rate in a statement if it is a division."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement else []
    rates = [argument(call, 1, "lr") for call in calls if called(call)[:1].isupper()]
    rate = next(filter(None, rates), getattr(statement, "value", None))
    if not isinstance(rate, ast.BinOp) or not isinstance(rate.op, ast.Div):
        return None
    ranks = last_name(getattr(rate.right, "func", rate.right))
    return rate if RANKS.search(ranks) else None


def _undivided_rate(at: Statement) -> Fix:
    rate = _divided_rate(at.node)
    return () if rate is None else (Replace(at.line, ast.unparse(rate), ast.unparse(rate.left)),)


def divided_by_all_items(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report losses divided by the items of all ranks although gradients are averaged over the ranks."""
    found: dict[Site, list[float]] = defaultdict(list)
    for windows in side_by_side(runs):
        pairs = list(zip(runs, windows, strict=True))
        if not all(averaged(run, window) for run, window in pairs):
            continue
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
