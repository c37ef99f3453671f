"""Edits the number by which micro-batches are divided."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._queries import find
from gradgate.checker.analysis._scopes import own_nodes
from gradgate.checker.analysis._source import path_to
from gradgate.checker.analysis._statement import CLOSED, Statement, method, operand, owner
from gradgate.checker.fixes import Fix, Replace
from gradgate.events import Frame


def accelerator_around(backward: Frame) -> str:
    """Return the name of the Accelerator whose ``accumulate()`` block calls ``backward()``, or ""."""
    path = path_to(backward.file, backward.line)
    for item in (item for node in path if isinstance(node, ast.With) for item in node.items):
        match item.context_expr:
            case ast.Call(ast.Attribute(value, "accumulate")) if method(path[-1]) == "backward":
                name = ast.unparse(value)
                return "" if owner(path[-1]) == name else name
    return ""


def by_the_accelerator(at: Statement, accelerator: str) -> Fix:
    """Let the Accelerator call ``backward()``."""
    match at.value:
        case ast.Call(ast.Attribute(loss, "backward"), args, keywords) as call:
            given = ", ".join(map(ast.unparse, (loss, *args, *keywords)))
            return (Replace(at.line, ast.unparse(call), f"{accelerator}.backward({given})"),)
    return ()


def undivided(at: Statement) -> Fix:
    """Remove the only division of a statement."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    left = divisions[0].left
    dividend = ast.unparse(left) if divisions[0] is at.value else operand(left)
    return (Replace(at.line, ast.unparse(divisions[0]), dividend),)


def divided_by(at: Statement, size: int) -> Fix:
    """Divide by another number, if the statement divides exactly once."""
    divisions = at.divisions()
    if len(divisions) != 1:
        return ()
    new = f"{operand(divisions[0].left)} / {_name_of(at, size) or size}"
    return (Replace(at.line, ast.unparse(divisions[0]), new),)


def divided(at: Statement, size: int) -> Fix:
    """Divide the loss where it is computed or back-propagated."""
    by = _name_of(at, size) or str(size)
    match at.node:
        case ast.Expr(ast.Call(ast.Attribute(value, "backward"))) if isinstance(value, CLOSED):
            new = f"({ast.unparse(value)} / {by})"
        case ast.Assign([ast.Name()], ast.BinOp(_, ast.Mult() | ast.Div()) as value):
            new = f"{ast.unparse(value)} / {by}"
        case ast.Assign([ast.Name()], value) if isinstance(value, (*CLOSED, ast.BinOp)):
            new = f"{operand(value)} / {by}"
        case _:
            return ()
    return (Replace(at.line, ast.unparse(value), new),)


def _name_of(at: Statement, size: int) -> str:
    """Return the expression for the number of micro-batches in a window, or "" if it may differ from ``size``.

    It is the divisor in the step's condition, ``i % number``, or ends the loop: ``for _ in range(number)``.
    """
    conditions = [
        node.test for node in own_nodes(at.function) if isinstance(node, ast.If) and at.steps(within=node)
    ]
    counts = [part.right for part in find(ast.BinOp, *conditions) if isinstance(part.op, ast.Mod)]
    match at.loops:
        case [ast.For(_, ast.Call(ast.Name("range"), [count])) as loop, *_] if not at.steps(within=loop):
            counts.append(count)
    names = {ast.unparse(count) for count in counts if isinstance(count, CLOSED)}
    name = names.pop() if len(names) == 1 else ""
    known = [getattr(value, "value", None) for value in at.assigned_to(name)] == [size]
    return name if known and at.knows(name.partition(".")[0]) else ""
