"""Tells loops over micro-batches from loops over the parts of a loss."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gradgate.checker.analysis._queries import with_line_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, key_of, scope_at
from gradgate.checker.analysis._source import loops_around, spans
from gradgate.events import Backward, EpochEnded, EpochStarted, Site, Stepped


def is_once_per_batch(run: Run, site: Site) -> bool:
    """Return whether a line calls backward exactly once for each batch of an epoch."""
    starts = list(run.numbered(EpochStarted))
    for place, (number, event) in enumerate(starts):
        # A loader with prefetching ends before the last batches are used.
        later = (n for n, each in starts[place + 1 :] if each.loader == event.loader)
        epoch = run.events[number : next(later, None)]
        ended = [each for each in epoch if isinstance(each, EpochEnded) and each.loader == event.loader]
        calls = sum(isinstance(each, Backward) and each.site == site for each in epoch)
        if ended and calls == ended[0].batches > 0:
            return True
    return False


def is_of_several_networks(run: Run, micro: Sequence[int]) -> bool:
    """Return whether a loop trains several networks: between these backward calls, it clears but never steps.

    Each network's loss also fills gradients of the other networks. The loop clears these before the next loss.
    """
    stepped = any(isinstance(event, Stepped) for event in run.events[micro[0] : micro[-1]])
    lost = (part.cleared for number in micro for part in run.by_backward[number] if part.is_lost)
    return not stepped and any(cleared is not None and cleared < micro[-1] for cleared in lost)


def is_in_a_loop_of_its_own(site: Site, step: Site) -> bool:
    """Return whether a line is in a loop that ends before the step."""
    for frame, line in with_line_of(site, step):
        loops = loops_around(frame)
        if loops or line is not None:
            return bool(loops) and (line is None or line > (loops[0].end_lineno or line))
    return False


def is_over_kinds(site: Site, step: Site) -> bool:
    """Return whether the loop around a line runs over a few named things, such as domains, whose losses add up.

    Such a loop runs over a tuple, list or dict that the source writes out. Micro-batches come from a loader, a
    range or a split.
    """
    for frame, line in with_line_of(site, step):
        loops, scope = loops_around(frame), scope_at(frame)
        if scope is None or not loops or not isinstance(loops[0], ast.For) or spans(loops[0], line or 0):
            continue
        over = loops[0].iter
        given = over.args if isinstance(over, ast.Call) and called(over) in ("zip", "enumerate") else [over]
        for value in given:
            known = definitions(scope).get(key_of(value), ())
            for written in (value, *(each.value for each in known if len(known) == 1 and each.whole)):
                match written:
                    case ast.Tuple([_, *_]) | ast.List([_, *_]) | ast.Dict(_, [_, *_]):
                        return True
                    case ast.Call() if written is value and called(written) in ("items", "keys", "values"):
                        return True
    return False
