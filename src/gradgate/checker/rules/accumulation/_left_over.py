"""Finds micro-batches whose gradients no step uses, and the line that clears these gradients."""

from __future__ import annotations

import ast
from itertools import groupby

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import function_at
from gradgate.checker.analysis._statement import Statement
from gradgate.events import Frame, Site


def left_over(run: Run, optimizer: int, site: Site) -> list[int]:
    """Return the length of each sequence of consecutive backward calls at this line that no step used."""
    held = run.held(optimizer)

    def is_unused(number: int) -> bool:
        mine = [part for part in run.by_backward[number] if part.atom & held]
        return bool(mine) and not any(part.consumed for part in mine)

    calls = [n for n in sorted(run.by_backward) if n >= 0 and run.events[n].site == site]
    rows = [(unused, list(row)) for unused, row in groupby(calls, key=is_unused)]
    last = [part for number in rows[-1][1] for part in run.by_backward[number]]
    if run.ended != "finished" and any(part.cleared is None for part in last):
        del rows[-1]  # the script ended early: a step may have followed
    return [len(row) for unused, row in rows if unused]


def is_flag_elsewhere(at: Statement, site: Site) -> bool:
    """Return whether a condition is only a name, and in a function that does not call backward."""
    flag = isinstance(getattr(at.node, "test", None), (ast.Name, ast.Attribute))
    return flag and all(function_at(frame) is not at.function for frame in site)


def clearing_line(run: Run, site: Site) -> Frame | None:
    """Return the only line that clears this line's gradients before a step uses them; None if there are several."""
    lost = [
        part.cleared
        for number, parts in run.by_backward.items()
        if number >= 0 and run.events[number].site == site
        for part in parts
        if part.is_lost and part.cleared is not None
    ]
    lines = {innermost(run.events[number].site) for number in lost if run.events[number].site}
    return lines.pop() if len(lines) == 1 else None
