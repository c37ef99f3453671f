"""Finds loops that compute several losses, only the last of which is back-propagated."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import Definition, called, definitions, key_of, own_nodes, scope_at
from gradgate.checker.analysis._source import spans, statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Site

_TIMES = 2
_BACKWARD = ("backward", "manual_backward")


def only_the_last(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report ``backward()`` after a loop of n iterations, each of which computes a loss and divides it by n."""
    calls: dict[Site, list[Backward]] = defaultdict(list)
    for event in run.of(Backward):
        if event.site and event.terms and event.reached & run.owned:
            calls[event.site].append(event)
    for site, events in calls.items():
        found = _loop_before(site[0]) if len(events) >= _TIMES else None
        if found is None:
            continue
        name, loop, lines = found
        passes = {
            factor
            for event in events
            for term in event.terms
            for op, factor, where in term.factors
            if op == "div" and where and where[0].file == site[0].file and where[0].line in lines
        }
        if passes and min(passes) > 1:
            yield rule.finding(
                site,
                f"Each of {max(passes):g} iterations of the loop at line {loop.lineno} computes `{name}` again and "
                "divides it by the number of iterations, but only the last loss is back-propagated.",
                why="The other losses are displayed, but training does not minimize them.",
                advice=f"Call backward() inside the loop, on each `{name}`.",
                count=len(events),
                evidence={"passes": max(passes)},
            )


def _loop_before(frame: Frame) -> tuple[str, ast.For, set[int]] | None:
    """Return the loss of a backward call, the loop that computes it, and the lines that divide it."""
    statement, scope = statement_at(frame), scope_at(frame)
    if statement is None or scope is None:
        return None
    made = definitions(scope)
    read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for loop in own_nodes(scope.node):
        if not isinstance(loop, ast.For) or spans(loop, frame.line) or loop.lineno > frame.line:
            continue
        passes = _passes(loop)
        inside = [node for part in loop.body for node in ast.walk(part)]
        if not passes or any(isinstance(node, ast.Call) and called(node) in _BACKWARD for node in inside):
            continue
        own = set(inside)
        for name in sorted(read):
            several = made.get(name, ())
            if not several or not all(each.statement in own for each in several):
                continue
            lines = {
                line for each in several if (line := _divided(each.statement, each.value, passes)) is not None
            }
            if lines and not _is_carried(inside, made):
                return name, loop, lines
    return None


def _passes(loop: ast.For) -> str:
    """Return ``n`` of ``for ... in range(n)``, or ""."""
    over = loop.iter
    counted = isinstance(over, ast.Call) and called(over) == "range" and len(over.args) == 1
    return ast.unparse(over.args[0]) if isinstance(over, ast.Call) and counted else ""


def _divided(statement: ast.AST, value: ast.expr, passes: str) -> int | None:
    """Return the line of a statement if the statement divides by this number."""
    divisors = [value] if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div) else []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        divisors.append(value.right)
    return value.lineno if any(ast.unparse(each) == passes for each in divisors) else None


def _is_carried(inside: list[ast.AST], made: Mapping[str, Iterable[Definition]]) -> bool:
    """Return whether an iteration reads a value of an earlier one: the last loss then includes all iterations."""
    own = set(inside)
    # For each name, the line before which an iteration reads the value of the iteration before.
    first: dict[str, float] = {}
    adding: set[ast.AST] = set()  # nodes of the names in ``losses.append(loss)`` and ``losses[task] = loss``
    for key, several in made.items():
        for each in several:
            if each.statement not in own or key == "self":
                continue
            line: float = each.value.end_lineno or 0
            if isinstance(each.statement, ast.Expr):
                line = math.inf
                adding.add(each.statement.value.func.value)  # type: ignore[attr-defined]
            elif isinstance(each.statement, ast.Assign) and not each.whole:
                line = math.inf
                adding |= {
                    target.value for target in each.statement.targets if isinstance(target, ast.Subscript)
                }
            first[key] = min(line, first.get(key, math.inf))
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and node not in adding
        and node.lineno <= first.get(key_of(node), 0)
        for node in inside
    )
