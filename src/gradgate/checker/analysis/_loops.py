"""Tells lines that run for each micro-batch from lines that run once for several."""

from __future__ import annotations

from gradgate.checker.analysis._queries import condition_around, with_line_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import loops_around
from gradgate.events import Backward, EpochEnded, EpochStarted, Site


def steps_apart(site: Site, step: Site) -> bool:
    """Return whether a condition decides when to step, or a line is in a loop that ends before the step."""
    if condition_around(step, site) is not None:
        return True
    for frame, line in with_line_of(site, step):
        loops = loops_around(frame)
        if loops or line is not None:
            return bool(loops) and (line is None or line > (loops[0].end_lineno or line))
    return False


def is_once_per_batch(run: Run, site: Site) -> bool:
    """Return whether a line calls backward exactly once for each batch of an epoch."""
    starts = list(run.numbered(EpochStarted))
    for place, (number, event) in enumerate(starts):
        # A loader with prefetching ends before the last batches are used.
        later = (n for n, start in starts[place + 1 :] if start.loader == event.loader)
        epoch = run.events[number : next(later, None)]
        ended = [end for end in epoch if isinstance(end, EpochEnded) and end.loader == event.loader]
        calls = sum(isinstance(call, Backward) and call.site == site for call in epoch)
        if ended and calls == ended[0].batches > 0:
            return True
    return False
