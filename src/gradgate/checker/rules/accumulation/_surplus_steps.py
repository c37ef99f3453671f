"""Finds a step after each micro-batch, in addition to the step that ends a window."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gradgate.checker.analysis._queries import condition_around
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import loops_around, spans
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Delete, Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Site, Stepped


class SurplusStep(NamedTuple):
    """A step in every iteration of a loop that also steps under a condition such as ``(i + 1) % 4 == 0``."""

    optimizer: int
    site: Site
    conditional: Site
    times: int
    every: int  # number of these steps for each conditional step


def surplus_steps(run: Run) -> Iterator[SurplusStep]:
    """Yield the surplus step of each optimizer that has one."""
    steps: Counter[tuple[int, Site]] = Counter()
    pairs: Counter[tuple[int, Site, Site]] = Counter()
    before: dict[int, Site] = {}  # the lines of the steps since the last backward call
    for event in run.of(Backward, Stepped):
        if isinstance(event, Backward):
            before = {}
            continue
        steps[event.optimizer, event.site] += 1
        if event.optimizer in before:
            pairs[event.optimizer, before[event.optimizer], event.site] += 1
        before[event.optimizer] = event.site
    for (optimizer, first, second), times in pairs.items():
        every = steps[optimizer, second] // times
        if first != second and times == steps[optimizer, first] > 1 < every and _ends_a_window(first, second):
            yield SurplusStep(optimizer, second, first, steps[optimizer, second], every)


def _ends_a_window(first: Site, second: Site) -> bool:
    """Return whether the first step depends on an ``if`` with a remainder, ``%``, in the second step's loop."""
    condition = condition_around(first, second)
    at = Statement.at(condition) if condition is not None else None
    tests = ast.walk(at.node.test) if at is not None and isinstance(at.node, ast.If) else ()
    loops = {tuple(loops_around(frame)) for frame in (condition, innermost(second)) if frame is not None}
    return len(loops) == 1 and any(isinstance(node, ast.Mod) for node in tests)


def surplus(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report surplus steps."""
    for each in surplus_steps(run):
        name, line = run.optimizer(each.optimizer), innermost(each.conditional).line
        yield rule.finding(
            each.site,
            f"{name} steps here after each micro-batch, {each.times} times, and in line {line} after every "
            f"{each.every} micro-batches: each window holds 1 micro-batch instead of {each.every}.",
            why="No step uses the gradient of a whole window. If losses are divided by the window's size, steps "
            "are too small.",
            advice=f"Remove this step, and clear only after the step of line {line}.",
            fix=functools.partial(_without, line=line),
            count=each.times,
            evidence={"steps": each.times, "micro_batches": each.every},
        )


def _without(at: Statement, *, line: int) -> Fix:
    """Delete the step, and clear only where the window ends."""
    ends = [node for node in at.block if spans(node, line)]
    name = owner(at.node)
    clears = at.beside("zero_grad", of=name)
    if method(at.node) != "step" or not ends or len(clears) > 1:
        return ()
    inside = [node for node in ast.walk(ends[0]) if method(node) == "zero_grad" and owner(node) == name]
    moved = [Delete(node.lineno) if inside else Move(node.lineno, after=line) for node in clears]
    return (Delete(at.line), *moved)
