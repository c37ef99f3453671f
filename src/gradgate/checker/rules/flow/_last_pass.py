"""Finds loops that compute several losses, only the last of which is back-propagated."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, key_of, scope_at
from gradgate.checker.analysis._source import loops_around, spans, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Site

_TIMES = 2


def only_the_last(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report ``backward()`` after a loop of n iterations, each of which computes a loss and divides it by n."""
    found: dict[tuple[Site, Frame], list[float]] = defaultdict(list)
    for event in run.of(Backward):
        factors = [factor for term in event.terms for factor in term.factors]
        divided = {(where[0], number) for op, number, where in factors if op == "div" and where}
        # A loss that includes several iterations has a term of each line for each iteration.
        once = len({term.site for term in event.terms}) == len(event.terms)
        if event.site and event.reached & run.owned and once and len(divided) == 1:
            ((line, number),) = divided
            found[event.site, line] += [number] if number > 1 else []
    for (site, line), passes in found.items():
        loop = next(iter(loops_around(line)), None)
        outside = loop is not None and line.file == site[0].file and not spans(loop, site[0].line)
        if outside and isinstance(loop, ast.For) and len(passes) >= _TIMES and _is_mean(loop, line):
            yield rule.finding(
                site,
                f"Each of {passes[0]:g} iterations of the loop at line {loop.lineno} computes a loss and divides "
                "it by the number of iterations, but only the last loss is back-propagated.",
                why="The other losses are displayed, but training does not minimize them.",
                advice="Call backward() inside the loop, on each loss.",
                count=len(passes),
                evidence={"passes": passes[0]},
            )


def _is_mean(loop: ast.For, line: Frame) -> bool:
    """Return whether a line divides by the ``n`` of ``for ... in range(n)``, and iterations are independent."""
    nodes = ast.walk(statement_at(line) or ast.Pass())
    divisions = [node for node in nodes if isinstance(getattr(node, "op", None), ast.Div)]
    divisors = {ast.unparse(getattr(node, "right", getattr(node, "value", node))) for node in divisions}
    over = loop.iter
    counted = isinstance(over, ast.Call) and called(over) == "range" and list(map(ast.unparse, over.args))
    return counted in [[each] for each in divisors] and not _is_carried(loop, line)


def _is_carried(loop: ast.For, line: Frame) -> bool:
    """Return whether an iteration reads a value of an earlier one: the last loss then includes all iterations."""
    scope = scope_at(line)
    inside = {node for part in loop.body for node in ast.walk(part)}
    names = [node for node in inside if isinstance(node, (ast.Name, ast.Attribute))]
    for key, several in definitions(scope).items() if scope is not None else ():
        own = [each for each in several if each.statement in inside and key != "self"]
        reads = [node.lineno for node in names if isinstance(node.ctx, ast.Load) and key_of(node) == key]
        # ``losses.append(loss)`` and ``losses[task] = loss`` read the name once.
        adding = {each.statement for each in own if not each.whole and not hasattr(each.statement, "op")}
        first = min((each.value.end_lineno or 0 for each in own), default=0)
        if len(reads) > len(adding) if adding else any(read <= first for read in reads):
            return True
    return False
