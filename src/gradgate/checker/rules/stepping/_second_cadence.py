"""Finds schedulers that are advanced at each optimizer step, and once more in an outer loop."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import pairwise

from gradgate.checker.analysis._run import innermost
from gradgate.checker.analysis._source import inside, loops_around, statement_at
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Delete, Fix
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.stepping._cadence import Cadence
from gradgate.events import Site

_LEAST = 2  # additional calls


def of_second_cadence(cadence: Cadence, rule: Rule) -> Finding | None:
    """Report a line that advances a schedule in a loop around the loop that already advances it at each step."""
    sites = {call: cadence.run.events[call].site for call in cadence.calls}
    main, times = Counter(sites.values()).most_common(1)[0]
    inner, steps = _loops(main), len(cadence.steps)
    extra: Counter[Site] = Counter(
        sites[call]
        for before, call in pairwise(cadence.calls)
        if not any(before < step < call for step in cadence.steps)
    )
    extra = Counter({site: count for site, count in extra.items() if set() < _loops(site) < inner})
    if not 0.9 * steps <= times <= steps or not extra or len(cadence.calls) <= steps:
        return None
    site, count = extra.most_common(1)[0]
    if count < _LEAST or 2 * count > times:
        return None
    return rule.finding(
        site,
        f"{cadence.made.kind} is advanced {cadence.counts}: line {innermost(main).line} advances it after each "
        f"step, and this line advances it again, {count} times, without a step in between.",
        why="The schedule runs ahead of the training.",
        advice=f"Call {cadence.call} in one place.",
        fix=_deleted,
        count=count,
        evidence={"advanced": len(cadence.calls), "steps": steps},
    )


def _loops(site: Site) -> set[ast.AST]:
    """Return the loops and comprehensions around a position and around the calls that lead to it."""
    simple = [node for node in map(statement_at, site) if node is not None and not hasattr(node, "body")]
    return {*(loop for frame in site for loop in loops_around(frame)), *inside(ast.comprehension, *simple)}


def _deleted(at: Statement) -> Fix:
    return (Delete(at.line),) if method(at.node) == "step" and len(at.block) > 1 else ()
