"""Edits the number by which micro-batches are divided."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import called, own_nodes
from gradgate.checker.analysis._source import path_to
from gradgate.checker.analysis._statement import CLOSED, Statement, method, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.events import Frame


def accelerator_around(backward: Frame) -> str:
    """Return the name of the Accelerator whose ``accumulate()`` block calls ``backward()``, or ""."""
    path = path_to(backward.file, backward.line)
    if not path or method(path[-1]) != "backward":
        return ""
    for node in path:
        for item in node.items if isinstance(node, ast.With) else ():
            call = item.context_expr
            if (
                isinstance(call, ast.Call)
                and called(call) == "accumulate"
                and isinstance(call.func, ast.Attribute)
            ):
                name = ast.unparse(call.func.value)
                return "" if ast.unparse(path[-1]).startswith(f"{name}.") else name
    return ""


def by_the_accelerator(at: Statement, accelerator: str) -> Fix:
    """Let the Accelerator call ``backward()``."""
    call = at.value
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or method(at.node) != "backward"
    ):
        return ()
    given = ", ".join([ast.unparse(call.func.value), *map(ast.unparse, (*call.args, *call.keywords))])
    return (Replace(at.line, ast.unparse(call), f"{accelerator}.backward({given})"),)


def undivided_here(at: Statement) -> Fix:
    """Remove the only division of a statement."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    return (Replace(at.line, ast.unparse(divisions[0]), ast.unparse(divisions[0].left)),)


def divided(at: Statement, size: int) -> Fix:
    """Divide the loss where it is computed or back-propagated."""
    by = _name_of(at, size) or str(size)
    value = at.value
    if method(at.node) == "backward" and isinstance(value, ast.Call):
        loss = getattr(value.func, "value", None)
        if not isinstance(loss, CLOSED):
            return ()
        return (Replace(at.line, ast.unparse(loss), f"({ast.unparse(loss)} / {by})"),)
    if not isinstance(at.node, ast.Assign) or not isinstance(value, (*CLOSED, ast.BinOp)):
        return ()
    if len(at.node.targets) > 1 or not isinstance(at.node.targets[0], ast.Name):
        return ()
    product = isinstance(value, CLOSED) or isinstance(value.op, (ast.Div, ast.Mult))
    old = ast.unparse(value)
    return (Replace(at.line, old, f"{old} / {by}" if product else f"({old}) / {by}"),)


def divided_by(at: Statement, size: int) -> Fix:
    """Divide by another number, if the statement divides exactly once."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    old = ast.unparse(divisions[0])
    return (Replace(at.line, old, f"{operand(divisions[0].left)} / {_name_of(at, size) or size}"),)


def _name_of(at: Statement, size: int) -> str:
    """Return the expression for the number of micro-batches in a window, or "" if it may differ from ``size``.

    It is the divisor in the step's condition, ``i % number``, or ends the loop: ``for _ in range(number)``.
    """
    conditions = (
        node for node in own_nodes(at.function) if isinstance(node, ast.If) and at.steps(within=node)
    )
    tests = (part for node in conditions for part in ast.walk(node.test) if isinstance(part, ast.BinOp))
    counts = [part.right for part in tests if isinstance(part.op, ast.Mod)]
    over = getattr(at.loops[0], "iter", None) if at.loops and not at.steps(within=at.loops[0]) else None
    if isinstance(over, ast.Call) and called(over) == "range" and len(over.args) == 1:
        counts += over.args
    names = {ast.unparse(count) for count in counts if isinstance(count, CLOSED)}
    name = names.pop() if len(names) == 1 else ""
    known = [getattr(value, "value", None) for value in at.assigned_to(name)] == [size]
    return name if known and at.knows(name.partition(".")[0]) else ""
