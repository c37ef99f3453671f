"""Tells loops over micro-batches from loops over the parts of a loss."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, key_of, scope_at
from gradgate.checker.analysis._source import loops_around, spans
from gradgate.events import Backward, EpochEnded, EpochStarted, Site


def is_once_per_batch(run: Run, site: Site) -> bool:
    """Return whether a line calls backward exactly once for each batch of an epoch."""
    starts = [(n, each) for n, each in run.numbered(EpochStarted) if isinstance(each, EpochStarted)]
    for place, (number, event) in enumerate(starts):
        # A loader with prefetching ends before the last batches are used.
        later = (n for n, each in starts[place + 1 :] if each.loader == event.loader)
        epoch = run.events[number : next(later, None)]
        ended = [each for each in epoch if isinstance(each, EpochEnded) and each.loader == event.loader]
        calls = sum(isinstance(each, Backward) and each.site == site for each in epoch)
        if ended and calls == ended[0].batches > 0:
            return True
    return False


def is_in_a_loop_of_its_own(site: Site, step: Site) -> bool:
    """Return whether a line is in a loop that ends before the step."""
    steps = {(frame.file, frame.function): frame.line for frame in step}
    for frame in site:
        loops, line = loops_around(frame), steps.get((frame.file, frame.function))
        if line is not None:
            return bool(loops) and line > (loops[0].end_lineno or line)
        if loops:
            return True
    return False


def is_over_kinds(site: Site, step: Site) -> bool:
    """Return whether the loop around a line runs over a few named things, such as domains, whose losses add up.

    Such a loop runs over a tuple, list or dict that the source writes out. Micro-batches come from a loader, a
    range or a split.
    """
    ends = {(frame.file, frame.function): frame.line for frame in step}
    for frame in site:
        loops, scope = loops_around(frame), scope_at(frame)
        loop = loops[0] if loops else None
        if not isinstance(loop, ast.For) or spans(loop, ends.get((frame.file, frame.function), 0)):
            continue
        over = loop.iter
        given = over.args if isinstance(over, ast.Call) and called(over) in ("zip", "enumerate") else [over]
        for value in given:
            if isinstance(value, ast.Call) and called(value) in ("items", "keys", "values"):
                return True
            known = definitions(scope).get(key_of(value), ()) if scope is not None else ()
            written = [value, *(each.value for each in known if len(known) == 1 and each.whole)]
            if any(isinstance(each, (ast.Tuple, ast.List, ast.Dict)) and _parts(each) for each in written):
                return True
    return False


def _parts(literal: ast.Tuple | ast.List | ast.Dict) -> list[ast.expr]:
    return literal.values if isinstance(literal, ast.Dict) else literal.elts
