"""Finds averages that pair a part of a network with the whole copy, so that the end of the copy never changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import nodes_of
from gradgate.checker.fixes import Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.stepping._lost_averages import OPS, statements_of
from gradgate.events import Frame, PartlyCopied, Stepped


def shortened_averages(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a loop over ``zip(student.trunk.parameters(), teacher.parameters())``: zip ends too early."""
    events = run.of(PartlyCopied)
    files = (
        tuple(sorted({frame.file for event in run.events for frame in event.site})) if len(events) > 1 else ()
    )
    loops = [(file, node) for file in files for node in nodes_of([file]) if isinstance(node, ast.For)]
    for file, loop in loops:
        names = _part_and_whole(loop)
        if names is None or not any(_writes(node) for node in statements_of(loop)):
            continue
        part, whole = names
        last = events[-1]
        ids = frozenset[int]().union(*(event.parameters for event in events))
        yield rule.finding(
            Frame(file, loop.lineno, ""),
            f"This zip ends with the parameters of {part}: it updates {last.moved} of the {last.of} parameters of "
            f"{whole}, and the copies of {run.names(ids)} never change.",
            why="zip stops at the end of the shorter sequence without an error.",
            advice="Pair the whole networks, and let zip compare the lengths: zip(..., strict=True).",
            fix=(Replace(loop.lineno, f"{part}.parameters()", f"{part.rpartition('.')[0]}.parameters()"),),
            severity="warning",
            count=len(run.of(Stepped)),
            evidence={"moved": last.moved, "parameters": last.of},
            about=ids,
        )


def _part_and_whole(loop: ast.For) -> tuple[str, str] | None:
    """Return the part and the whole network whose parameters a loop pairs: "student.backbone" and "teacher"."""
    call = loop.iter
    if not isinstance(call, ast.Call) or called(call) != "zip" or len(call.args) != 2 or call.keywords:
        return None
    owners = [
        node.func.value
        for node in call.args
        if isinstance(node, ast.Call)
        and called(node) == "parameters"
        and isinstance(node.func, ast.Attribute)
    ]
    if len(owners) != 2:
        return None
    whole, part = sorted(map(ast.unparse, owners), key=lambda text: text.count("."))
    alike = part.rpartition(".")[2] in whole
    return (part, whole) if part.count(".") == whole.count(".") + 1 and not alike else None


def _writes(node: ast.stmt) -> bool:
    """Return whether a statement writes in place."""
    calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    if any(called(call) in (*(f"{name}_" for name in OPS), "copy_") for call in calls):
        return True
    return isinstance(node, (ast.Assign, ast.AugAssign)) and ".data" in ast.unparse(node).partition("=")[0]
