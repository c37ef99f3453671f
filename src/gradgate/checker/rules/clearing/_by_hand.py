"""Finds weights or attacked inputs updated by hand whose gradients are never cleared."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called_by
from gradgate.checker.analysis._source import inside, loops_around
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.events import Backward, Cleared, Frame, ModeSet, Stepped

_LEAST = 3  # backward calls that add to the same gradient


class UpdateByHand(NamedTuple):
    """A line that updates tensors by hand, their names and ids. At most ``most`` calls reach the same tensor."""

    line: Frame
    names: list[str]
    ids: list[int]
    most: int


def never_cleared(run: Run) -> Iterator[UpdateByHand]:
    """Yield the lines that update tensors by hand in a loop, from gradients that nothing clears.

    If the script has an optimizer, only tensors that no module owns are considered.
    """
    changed = [*run.of(Cleared), *run.written("gradient")]
    changed += [event for event in run.of(ModeSet) if not event.training]
    ignored = run.owned | union(event.parameters for event in changed)
    if run.made or run.of(Stepped, Cleared):
        ignored |= {number for number, each in run.parameters.items() if each.registered}
    lines: dict[Frame, Counter[int]] = defaultdict(Counter)
    for event in run.of(Backward):
        lines[innermost(event.site)].update(event.reached - ignored)
    for frame, times in lines.items():
        ids = [number for number, count in times.items() if count >= _LEAST]
        updates = updates_in_loop(frame) if ids else {}
        if updates:
            line = min(node.lineno for nodes in updates.values() for node in nodes)
            yield UpdateByHand(frame._replace(line=line), [*updates], ids, max(times.values()))


def updates_in_loop(backward: Frame) -> dict[str, list[ast.stmt]]:
    """Return the statements that change a tensor in place, in a loop that also reads the tensor's gradient.

    The loop is the innermost one around a backward call. Functions called there belong to it. A tensor that the
    loop assigns is new in each iteration, and so is its gradient.
    """
    loop = next(iter(loops_around(backward)), None)
    parts = [loop, *called_by(backward.file, loop)]
    reads = [
        node
        for node in inside(ast.Attribute, *parts)
        if node.attr == "grad" and isinstance(node.ctx, ast.Load)
    ]
    read = {ast.unparse(node.value) for node in reads}
    made = {ast.unparse(target) for node in inside(ast.Assign, loop) for target in node.targets}
    changes = ((_changed_in_place(node), node) for node in inside(ast.stmt, *parts))
    return grouped((target, node) for target, node in changes if target in read - made)


def _changed_in_place(node: ast.stmt) -> str:
    """Return ``x`` for ``x -= 1``, ``x.data = y``, ``x[0] = y`` and ``x.data.add_(y)``; otherwise ""."""
    target: ast.AST | None = None
    if isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Assign) and (
        isinstance(node.targets[0], ast.Subscript) or getattr(node.targets[0], "attr", "") == "data"
    ):
        target = node.targets[0]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        in_place = isinstance(function, ast.Attribute) and function.attr.endswith("_")
        target = function.value if isinstance(function, ast.Attribute) and in_place else None
    while isinstance(target, ast.Subscript) or (isinstance(target, ast.Attribute) and target.attr == "data"):
        target = target.value
    return ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""


def cleared_after(at: Statement, *, names: list[str]) -> Fix:
    """Clear each gradient after the last update in the same block."""
    updates = [node for node in at.block if _changed_in_place(node) in names]
    here = list(dict.fromkeys(map(_changed_in_place, updates)))
    later = [node for node in at.block if node.lineno > updates[-1].lineno] if updates else []
    reads = {ast.unparse(node) for node in inside(ast.Attribute, *later) if node.attr == "grad"}
    if here != names or not reads.isdisjoint(f"{name}.grad" for name in names):
        return ()
    return tuple(Insert(f"{name}.grad = None", after=updates[-1].lineno) for name in names)
