"""Finds sums over shifted positions that are divided by a count of the positions before the shift."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Term

_LEAST = 3  # different counts


def divided_by_unshifted_count(events: Sequence[Backward], rule: Rule) -> Iterator[Finding]:
    """Report sums whose divisor always counts one more position in each row than the sum includes."""
    sums = [term for event in events for term in event.terms if term.kind == "sum" and term.items]
    found = grouped(
        (site, (term, number)) for term in sums for op, number, site in term.factors if op == "div" and site
    )
    for site, pairs in found.items():
        more = {number - (term.items or 0) for term, number in pairs}
        rows = min(more)
        varied = len({term.items for term, _ in pairs}) >= _LEAST
        if len(more) > 1 or not varied or rows < 2 or not all(_has_rows(term, rows) for term, _ in pairs):
            continue
        term, number = pairs[0]
        yield rule.finding(
            site,
            f"A sum over {term.items:g} positions is divided by {number:g}: the count includes the first position "
            f"of each of {rows:g} rows, which the shifted targets leave out.",
            why="The loss is too small, and an item in a batch of short rows weighs less than one in a batch of "
            "long rows.",
            advice="Count the positions that the sum includes: shift its mask, too, mask[:, 1:].sum().",
            fix=_shifted,
            severity="warning",
            count=len(pairs),
            evidence={"rows": rows, "positions": [term.items for term, _ in pairs[:16]]},
        )


def _has_rows(term: Term, rows: float) -> bool:
    """Return whether the reduced tensor may have this many rows. A flat tensor has equally long rows."""
    return len(term.sizes) > 0 and (
        term.sizes[0] == rows or (len(term.sizes) == 1 and term.sizes[0] % rows == 0)
    )


def _shifted(at: Statement) -> Fix:
    """Divide by the count of the same part of the mask that the numerator uses."""
    for division in at.divisions():
        match division.right:
            case ast.Call(ast.Attribute(ast.Name(name), "sum"), [], []) as count:
                used = [
                    ast.unparse(node) for node in ast.walk(division.left) if isinstance(node, ast.Subscript)
                ]
                parts = {text for text in used if text.startswith(f"{name}[")}
                if len(parts) == 1:
                    return (Replace(at.line, ast.unparse(count), f"{parts.pop()}.sum()"),)
    return ()
