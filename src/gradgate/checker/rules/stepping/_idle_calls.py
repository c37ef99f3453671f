"""Finds the lines that would step an optimizer or advance a scheduler but didn't run."""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from itertools import chain

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import (
    function_at,
    inside,
    nodes_of,
    path_to,
    spans,
    statement_at,
    tree_of,
)
from gradgate.checker.analysis._statement import Statement
from gradgate.events import Frame, SchedulerMade, Site, Stepped


def would_be_advanced(run: Run, made: SchedulerMade) -> bool:
    """Return whether a line that didn't run calls ``step`` on an object with the scheduler's name."""
    statement = statement_at(innermost(made.site))
    names = {last_name(target) for target in getattr(statement, "targets", ())}
    files = dict.fromkeys(frame.file for event in run.of(SchedulerMade, Stepped) for frame in event.site)
    ran = {frame[:2] for event in run.of(Stepped) for frame in event.site}
    return any(
        (last_name(node.value) in names or "sched" in last_name(node.value).lower())
        and not _waits_for_a_step(file, node.lineno, ran)
        for file in files
        for node in inside(ast.Attribute, tree_of(file))
        if node.attr == "step"
    )


def _waits_for_a_step(file: str, line: int, ran: Container[tuple[str, int]]) -> bool:
    """Return whether a line waits for a flag that is set only next to optimizer steps that didn't run."""
    around = [node for node in path_to(file, line) if isinstance(node, ast.If)]
    tests = [node.test for node in around if any(spans(inner, line) for inner in node.body)]
    both = [test.values for test in tests if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)]
    flags = {last_name(part) for part in chain(tests, *both) if isinstance(part, (ast.Name, ast.Attribute))}
    for flag in flags:
        names = [node for node in nodes_of([file]) if isinstance(node, (ast.Name, ast.Attribute))]
        stores = [node for node in names if last_name(node) == flag and isinstance(node.ctx, ast.Store)]
        places = [at for node in stores if (at := Statement.at(Frame(file, node.lineno, "")))]
        setting = [at for at in places if getattr(at.value, "value", True) is not False]
        steps = [at.beside("step") if getattr(at.value, "value", 0) is True else [] for at in setting]
        if steps and all(steps) and not any((file, step.lineno) in ran for step in chain(*steps)):
            return True
    return False


def calls_step(file: str, name: str, ran: Container[tuple[str, int]]) -> bool:
    """Return whether a line that stepped no other optimizer calls ``step`` on this optimizer or its wrapper."""
    steps = [
        ast.unparse(node.value)
        for node in inside(ast.Attribute, tree_of(file))
        if node.attr == "step" and (file, node.lineno) not in ran
    ]
    return any(name in of or re.search(r"opt|scaler|accelerator|engine", of, re.IGNORECASE) for of in steps)


def waiting_step(backward: Site, name: str) -> tuple[Frame, str, int] | None:
    """Return the ``if`` around a step that follows a backward call, its condition, and the line of the step."""
    for frame in backward:
        for node in inside(ast.Call, function_at(frame)):
            if ast.unparse(node.func) == f"{name}.step" and node.lineno > frame.line:
                path = path_to(frame.file, node.lineno)
                ifs = [each for each in path if isinstance(each, ast.If) and each.lineno > frame.line]
                return (
                    (frame._replace(line=ifs[-1].lineno), ast.unparse(ifs[-1].test), node.lineno)
                    if ifs
                    else None
                )
    return None
