"""Finds the condition that skips the last micro-batch of a window together with the window's step."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._source import inside, spans
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.rules.accumulation._window_edits import count_in
from gradgate.events import Site


def skips_boundaries(at: Statement | None, site: Site, divisor: float | None, sizes: list[int]) -> int | None:
    """Return the line of a condition that skips micro-batches, and the step at the end of a window with them.

    Args:
        at: the condition of the step, ``if (i + 1) % N == 0``. The loop must count ``i``.
        site: where the loop calls backward.
        divisor: what the losses are divided by.
        sizes: how many micro-batches each step uses.
    """
    count = count_in(at, getattr(at.node, "test", None)) if at is not None else None
    if at is None or count is None or divisor is None or not min(sizes) < divisor < max(sizes):
        return None
    loop = at.loops[0] if at.loops else None
    if not isinstance(loop, ast.For) or count.counter not in {n.id for n in inside(ast.Name, loop.target)}:
        return None
    backward = next((frame.line for frame in site if spans(loop, frame.line)), 0)
    for node in inside(ast.If, loop):
        leaves = node.lineno < backward and any(isinstance(each, ast.Continue) for each in node.body)
        around = spans(node, backward) and spans(node, at.line) and node is not at.node
        if backward and (leaves or around) and "%" not in ast.unparse(node.test):
            return node.lineno
    return None
