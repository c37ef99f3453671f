"""Finds losses that are divided by hand although an accumulator divides their sum."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import DividedTwice


def divided_by_hand(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report means that are divided by the number of micro-batches and then passed to gradgate's accumulator."""
    times = Counter(event.site for event in run.of(DividedTwice))
    for event in {event.site: event for event in run.of(DividedTwice)}.values():
        number = event.micro_batches
        yield rule.finding(
            event.site,
            f"The loss is divided by {number}, the number of micro-batches, and the update divides again by "
            f"all counts: the gradient is {number} times too small.",
            why="An accumulator adds sums and counts, and divides once. Pass it each mean without a division.",
            advice="Pass the loss without the division.",
            fix=_undivided,
            count=times[event.site],
            evidence={"micro_batches": number},
        )


def _undivided(at: Statement) -> Fix:
    """Replace the division in the call by its dividend."""
    calls = [call for call in at.calls("backward") if call.args]
    given = calls[0].args[0] if len(calls) == 1 else None
    if not isinstance(given, ast.BinOp) or not isinstance(given.op, ast.Div):
        return ()
    return (Replace(at.line, ast.unparse(given), ast.unparse(given.left)),)
