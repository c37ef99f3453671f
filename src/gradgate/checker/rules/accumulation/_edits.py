"""Edits of loops that accumulate: the condition of a step, and the divisor of a loss."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import CLOSED, Statement, operand
from gradgate.checker.fixes import Fix, Replace

_COUNT = re.compile(r"\(?(?P<counter>\w+)(?: \+ 1)?\)? % (?P<size>.+?) == 0")


def undivided(at: Statement) -> Fix:
    """Remove the only division of a statement."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    left = divisions[0].left
    dividend = ast.unparse(left) if divisions[0] is at.value or _is_argument(at, left) else operand(left)
    return (Replace(at.line, ast.unparse(divisions[0]), dividend),)


def _is_argument(at: Statement, dividend: ast.expr) -> bool:
    return any(getattr(each, "left", None) is dividend for call in at.calls() for each in call.args)


def divided_by(at: Statement, size: int) -> Fix:
    """Divide by another number, if the statement divides exactly once."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    return (Replace(at.line, ast.unparse(divisions[0]), f"{operand(divisions[0].left)} / {size}"),)


def divided(at: Statement, size: int) -> Fix:
    """Divide the loss where it is computed or back-propagated."""
    match at.node:
        case ast.Expr(ast.Call(ast.Attribute(value, "backward"))) if isinstance(value, (*CLOSED, ast.BinOp)):
            new = f"({operand(value)} / {size})"
            old = ast.unparse(value) if isinstance(value, CLOSED) else f"({ast.unparse(value)})"
            return (Replace(at.line, old, new),)
        case ast.Assign([ast.Name()], value) if isinstance(value, (*CLOSED, ast.BinOp)):
            return (Replace(at.line, ast.unparse(value), f"{operand(value)} / {size}"),)
    return ()


def count_from_one(at: Statement) -> Fix:
    """Count micro-batches from 1, also step at the end of the loop, and divide the last window by its size."""
    test = at.node.test if isinstance(at.node, ast.If) else None
    changed = None if isinstance(test, ast.BoolOp) else _counted(at, test)
    if changed is None or test is None:
        return ()
    divisions = [node for node in inside(ast.BinOp, at.loops[0]) if ast.unparse(node.right) == changed[1]]
    divided = by_its_window(at)
    by = any(isinstance(node.op, ast.Div) for node in divisions)
    return (Replace(at.line, ast.unparse(test), changed[0]), *divided) if divided or not by else ()


def by_its_window(at: Statement) -> Fix:
    """Divide by the number of micro-batches in each window, even in a shorter last window of the loop."""
    loop = at.loops[0] if at.loops else None
    conditions = (node for node in inside(ast.If, loop) if isinstance(node, ast.If))
    counted = next(filter(None, (_counted(at, node.test) for node in conditions)), None)
    divisions = [
        node
        for node in inside(ast.BinOp, loop)
        if counted and isinstance(node.op, ast.Div) and ast.unparse(node.right) == counted[1]
    ]
    if not counted or len(divisions) != 1:
        return ()
    _, size, counter, length = counted
    held = f"{operand(divisions[0].left)} / min({size}, {length} - {counter} // {size} * {size})"
    return (Replace(divisions[0].lineno, ast.unparse(divisions[0]), held),)


def _counted(at: Statement, test: ast.AST | None) -> tuple[str, str, str, str] | None:
    """Return the right condition, the window's size, the counter from 0 and the loop's length.

    The condition has the form ``i % N == 0`` or ``(i + 1) % N == 0`` in a loop over ``enumerate(loader)`` or
    ``range(n)``.
    """
    test = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else test
    found = _COUNT.fullmatch(ast.unparse(test)) if test is not None else None
    match at.loops[0] if at.loops else None:
        case ast.For(ast.Name(counter), ast.Call(ast.Name("range"), [end])):
            length = ast.unparse(end)
        case ast.For(ast.Tuple([ast.Name(counter), *_]), ast.Call(ast.Name("enumerate"), [ast.Name(over)])):
            length = f"len({over})" if _has_length(at, over) else ""
        case _:
            return None
    if found is None or found["counter"] != counter or not length:
        return None
    size = found["size"]
    return f"({counter} + 1) % {size} == 0 or {counter} + 1 == {length}", size, counter, length


def _has_length(at: Statement, name: str) -> bool:
    """Return whether a length is certain: the file has no generator and no data set without a length."""
    endless = {"IterableDataset", "iter", "islice", "cycle"}
    for node in ast.walk(at.module):
        if isinstance(node, (ast.Yield, ast.YieldFrom)) or last_name(node) in endless:
            return False
    lazy = ("map", "zip", "filter", "enumerate")
    return not any(
        isinstance(value, ast.GeneratorExp) or (isinstance(value, ast.Call) and last_name(value.func) in lazy)
        for value in at.assigned_to(name)
    )
