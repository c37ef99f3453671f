"""Finds a loss term that isn't divided by the number of micro-batches although other terms are."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import definitions, key_of, scopes_of
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, statement_at
from gradgate.events import Site, Stepped, Term


def undivided_term(
    run: Run, full: Iterable[tuple[StepWindow, list[int]]], size: int
) -> tuple[Term, Site] | None:
    """Return a term that each micro-batch adds undivided, and its line, if other terms are divided by ``size``.

    The other terms may be back-propagated at another line. A term with a different divisor may be a mean over
    something else. A weight that is computed by a division may already include the division by the number of
    micro-batches.
    """
    first: tuple[Term, Site] | None = None
    for window, micro in full:
        if any(part.touched or part.factor != 1 for part in window.fresh):
            return None
        if any(isinstance(event, Stepped) for event in run.events[micro[0] : micro[-1]]):
            return None  # another optimizer steps after each micro-batch, and the term may be its loss
        for number in micro:
            terms = [term for term in run.terms(number, window.parameters) if term.kind != "constant"]
            divided = [term for term in terms if _by(term, size)]
            others = [term for term in terms if term not in divided]
            apart = [] if divided else divided_apart(run, window, micro)
            whole = [term for term in others if not any(op == "div" for op, _, _ in term.factors)]
            if not (divided or apart) or not whole or len(whole) < len(others):
                return None
            if first is None:
                weighed = [where for _, _, where in whole[0].factors]
                where = () if apart else next(filter(None, weighed), _by(divided[0], size) or ())
                if any(_computed(site) for site in weighed):
                    return None
                first = whole[0], where
    return first


def divided_apart(run: Run, window: StepWindow, micro: Collection[int]) -> list[Term]:
    """Return the terms of another line's loss that each micro-batch divides by the number of micro-batches."""
    lines = run.by_line(number for number in window.micro if number not in micro)
    calls = [number for several in lines.values() if len(several) == len(micro) for number in several]
    terms = [term for number in calls for term in run.terms(number, window.parameters)]
    return [term for term in terms if _by(term, len(micro))]


def _by(term: Term, size: int) -> Site | None:
    """Return where a term is divided by a number, or multiplied by the reciprocal."""
    for op, number, where in term.factors:
        if abs((number if op == "div" else 1 / number if number else 0) - size) < 1e-6 * size:
            return where
    return None


def _computed(site: Site) -> bool:
    """Return whether a statement computes a weight by division, or reads a weight computed by division."""
    statement = statement_at(site[0]) if site else None
    products = [node for node in inside(ast.BinOp, statement) if isinstance(node.op, ast.Mult)]
    names = {key_of(side) for node in products for side in (node.left, node.right)} - {""}
    scopes = [scope for file in files_of([site]) for scope in scopes_of(file)]
    weights = [each.value for scope in scopes for name in names for each in definitions(scope).get(name, ())]
    numbers = [value for value in weights if not inside(ast.Call, value)]
    return any(isinstance(node.op, ast.Div) for node in inside(ast.BinOp, *products, *numbers))
