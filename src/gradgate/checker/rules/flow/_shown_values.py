"""Finds the values that a script displays or logs, and whether they have a graph."""

from __future__ import annotations

import ast
from collections import Counter

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, own_nodes, scope_at
from gradgate.events import Backward, Cut, Frame

SHOWS = ("item", "detach", "tolist", "numpy")


def displays(run: Run) -> list[Cut]:
    """Return the conversions of values to numbers."""
    return [event for event in run.of(Cut) if event.op in SHOWS and event.scalar and event.site]


def shown_by(node: ast.AST, ops: tuple[str, ...]) -> list[ast.expr]:
    """Return the values that an expression shows: of ``total.item()``, an f-string, or Lightning's ``log``."""
    if isinstance(node, ast.Call) and called(node) in ("log", "log_dict") and "detach" in ops:
        given = node.args[0] if node.args else None
        values = given.values if isinstance(given, ast.Dict) else node.args[1:2]
        return values if isinstance(given, (ast.Dict, ast.Constant, ast.JoinedStr)) else []
    shown = isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Attribute) and node.attr in ops)
    return [node.value] if shown else []  # type: ignore[attr-defined]


def is_shown_with_graph(run: Run, beside: Frame, part: ast.expr) -> bool:
    """Return whether the function displays a variable of an expression that had a graph when it was displayed.

    A value without a graph isn't recorded, so every value that a line displays has one if as many were recorded in
    one step.
    """
    scope, names = scope_at(beside), {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    recorded: Counter[tuple[int, int]] = Counter()  # by line and step
    step = 0
    for event in run.of(Backward, Cut):
        if isinstance(event, Backward):
            step += 1
        elif event.op in SHOWS and event.scalar and event.site and event.site[0][::2] == beside[::2]:
            recorded[event.site[0].line, step] += 1
    most = {line: count for (line, _), count in sorted(recorded.items(), key=lambda item: item[1])}
    shown = [value for node in own_nodes(scope.node) for value in shown_by(node, SHOWS)] if scope else []
    on_line = Counter(value.lineno for value in shown)
    return any(
        isinstance(value, ast.Name) and value.id in names and most.get(value.lineno) == on_line[value.lineno]
        for value in shown
    )
