"""Reasons for which a pattern that looks like a mistake is intended. Each is a small question about a run.

A rule, or the oracle, names the excuses that it honours.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._queries import with_line_of
from gradgate.checker.analysis._run import Run, once
from gradgate.checker.analysis._scopes import called, definitions, key_of, scope_at
from gradgate.checker.analysis._source import loops_around, spans
from gradgate.events import Backward, Differentiated, Reduced, Site, Stepped


def several_losses(run: Run, full: Sequence[tuple[StepWindow, list[int]]]) -> bool:
    """Return whether the backward calls of whole windows are no micro-batches of one loss.

    - They reach different parameters: they are losses of several tasks.
    - All but the last retain their graph: they are losses of one forward pass.
    - Gradients are taken of gradients: the loop of a meta-learner.
    - The gradients are summed over ranks by hand: the divisor must include the number of ranks.
    - They search for an input, or the loop clears between them: each network keeps its own loss's gradients.
    """
    if run.of(Differentiated) or any(event.parameters for event in run.of(Reduced)):
        return True
    return any(
        len({run.backward(number).reached for number in micro}) > 1
        or all(run.backward(number).retain for number in micro[:-1])
        or attacked_loss(run, window, micro) is not None
        for window, micro in full
    ) or (bool(full) and all(_clears_between(run, micro) for _, micro in full))


def _clears_between(run: Run, micro: Sequence[int]) -> bool:
    """Return whether gradients of these backward calls are cleared between them, and no optimizer steps there."""
    stepped = any(isinstance(event, Stepped) for event in run.events[micro[0] : micro[-1]])
    lost = (part.cleared for number in micro for part in run.by_backward[number] if part.is_lost)
    return not stepped and any(cleared is not None and cleared < micro[-1] for cleared in lost)


def attacked_loss(run: Run, window: StepWindow, micro: Sequence[int]) -> int | None:
    """Return the call that trains, if calls before it search for an input (an adversarial attack); otherwise None.

    The calls of the search follow one another, and each also reaches a tensor that is no parameter. The call that
    trains reaches only parameters.
    """
    own, searches = window.micro[-1], _searches(run)
    together = any(not any(one < each < other for each in window.micro) for one, other in pairwise(micro))
    found = together and all(run.backward(number).site in searches for number in micro)
    return own if found and run.backward(own).site not in searches else None


@once
def _searches(run: Run) -> set[Site]:
    """Return the lines whose losses always reach a tensor that is no parameter."""
    seen = [event for event in run.of(Backward) if event.seen]
    return {event.site for event in seen} - {event.site for event in seen if not event.others}


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
