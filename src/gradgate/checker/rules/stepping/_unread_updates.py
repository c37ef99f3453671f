"""Finds updates by hand that are bound to a name which the next iteration does not read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    called_by,
    is_function,
    names_read,
    names_stored,
    returned,
)
from gradgate.checker.analysis._source import inside, loops_around, statement_at, tree_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Differentiated, Frame, Stepped

_LEAST = 5  # calls that compute gradients


def unread_updates(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report updates that no later gradient depends on, if nothing else changes the parameters."""
    if run.of(Stepped) or run.written("value"):
        return
    calls = grouped(
        (event.site, event.asked if isinstance(event, Differentiated) else event.reached)
        for event in run.of(Backward, Differentiated)
    )
    for site, several in calls.items():
        ids, times = Counter(several).most_common(1)[0]
        loops = [(frame, loop) for frame in site for loop in loops_around(frame)[:1]]
        if times < _LEAST or not loops:
            continue
        (frame, loop), called_at = loops[0], statement_at(loops[0][0])
        gradients = names_stored(called_at) if called_at is not None else set()
        readers = [node for node in _simple(loop) if names_read(node) & gradients]
        for node in inside(ast.Assign, loop):
            match node.targets:
                case [ast.Name(name)] if _is_update(node.value, frame.file) and (ids or readers == [node]):
                    if _is_unread(name, loop, frame.file):
                        yield rule.finding(
                            Frame(frame.file, node.lineno, ""),
                            f"The update is bound to `{name}`, which the loop never reads: all {len(several)} "
                            "gradients are computed at the same values.",
                            why="Nothing is trained: each iteration begins with the initial values.",
                            advice=f"Bind the update to the name that the loss uses, instead of `{name}`.",
                            count=len(several),
                            evidence={"gradients": len(several)},
                            about=ids,
                        )


def _simple(loop: ast.AST) -> list[ast.stmt]:
    return [node for node in inside(ast.stmt, loop) if not hasattr(node, "body")]


def _is_update(value: ast.expr, file: str) -> bool:
    """Return whether a value, or what a function of the file returns for it, subtracts a multiple of a gradient."""
    scopes = [Scope(file, each) for each in called_by(file, value)]
    values = [value, *(each for scope in scopes for each in returned(scope))]
    return any(
        "grad" in ast.unparse(each) and isinstance(inner.op, ast.Sub) and isinstance(inner.right, ast.BinOp)
        for each in values
        for inner in inside(ast.BinOp, each)
    )


def _is_unread(name: str, loop: ast.For | ast.While, file: str) -> bool:
    """Return whether nothing reads a name before a loop ends. Local variables of other functions don't count."""
    tree = tree_of(file)
    own = {
        id(node)
        for function in inside(ast.AST, tree)
        if is_function(function) and not any(inner is loop for inner in ast.walk(function))
        if name in {*names_stored(function), *(each.arg for each in inside(ast.arg, function.args))}
        for node in inside(ast.Name, function)
    }
    reads = [node for node in inside(ast.Name, tree) if node.id == name and isinstance(node.ctx, ast.Load)]
    return all(node.lineno > (loop.end_lineno or 0) or id(node) in own for node in reads)
