"""The optimizer's momentum and averages are thrown away in the middle of the training.

## What it does
Looks for optimizers of one kind that are made again and again at one line for the same parameters, whose values go
on where they were, and for ``load_state_dict`` that leaves an optimizer with less state than it had.

## Why is this bad?
Adam's averages start from zero and are corrected for their start, so that its first steps are as long as the rate
allows, whatever the gradient; SGD loses its momentum.

## Example
    def train_epoch(model, loader):
        optimizer = torch.optim.Adam(model.parameters())      # in every epoch
        for x, y in loader: ...

## Use instead
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        train_epoch(model, loader, optimizer)

and ``group["lr"] = lr`` or a scheduler where only the rate is to change.

## Known limits
A new optimizer for each of a list of stages, tasks or folds is taken to be meant, as is one after which the
parameters were set back.

## Sources
Kingma and Ba, "Adam: a method for stochastic optimization", section 3.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import loops_around
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame, Ids, OptimizerMade, Site, StateLoaded, Stepped, Written

_STAGES = re.compile(
    r"stage|phase|task|fold|split|cycle|trial|run|seed|client|domain|session|experience|round|restart|config|setting"
    r"|lr|rate|width|size|member|model|name",
    re.IGNORECASE,
)
_WHY = "The first steps after it are as long as the rate allows, whatever the gradient was before."


def _judge(run: Run) -> Iterator[Finding]:
    yield from _loaded(run)
    made: dict[tuple[Frame, str, Ids], list[int]] = defaultdict(list)
    for number, event in run.numbered(OptimizerMade):
        if isinstance(event, OptimizerMade) and not event.added and _keeps_state(event):
            held: Ids = frozenset().union(*(group.parameters for group in event.groups))
            made[innermost(event.site), event.kind, held].append(number)
    for (_, kind, ids), several in made.items():
        resets = [
            after for before, after in itertools.pairwise(several) if _carries_on(run, before, after, ids)
        ]
        steps = [run.stepping[_made(run, number).optimizer] for number in several]
        if not resets:
            continue
        first, again = run.events[several[0]].site, run.events[resets[-1]].site
        if len(resets) * 2 >= len(several) - 1 and not _in_stages(again):
            yield RULE.finding(
                # A function that makes it may be right where it is called first.
                next((frame for frame in again if frame not in first), innermost(again)),
                f"{kind} was made {len(several)} times for {run.names(ids)}, and each time starts without what the "
                f"one before had gathered; the longest lived for {max(steps)} steps.",
                why=_WHY,
                advice="Make it once, before the loop, and pass it in; set group['lr'] where only the rate "
                "changes.",
                count=len(resets),
                evidence={"made": len(several), "steps": steps[:32]},
            )


def _made(run: Run, number: int) -> OptimizerMade:
    event = run.events[number]
    assert isinstance(event, OptimizerMade)  # noqa: S101
    return event


def _keeps_state(event: OptimizerMade) -> bool:
    return event.kind not in ("SGD", "LBFGS") or any(group.momentum for group in event.groups)


def _carries_on(run: Run, before: int, after: int, ids: Ids) -> bool:
    """Say whether training goes on with a new optimizer where the one before stopped."""
    old, new = _made(run, before).optimizer, _made(run, after).optimizer
    last = [number for number, event in run.numbered(Stepped) if number < after and _of(event, old)]
    then = [number for number, event in run.numbered(Stepped) if number > after and _of(event, new)]
    if not last or not then:
        return False
    if any(_of(event, old) for event in run.events[after:]):
        return False  # both live on
    between = sum(isinstance(event, Stepped) for event in run.events[last[-1] + 1 : then[0]])
    if between >= len(last):
        return False  # others had their turn: blocks are trained one after the other
    return not _written(run, last[-1], then[0], ids)


def _written(run: Run, start: int, end: int, ids: Ids) -> bool:
    """Say whether values were written or state was loaded, or nobody looked, between two steps."""
    if not run.stepped(start).seen or not run.stepped(end).seen:
        return True
    for event in run.events[start:end]:
        if isinstance(event, Written) and event.target == "value" and event.parameters & ids:
            return True
        if isinstance(event, StateLoaded) and event.after:
            return True
    return False


def _of(event: object, optimizer: int) -> bool:
    return isinstance(event, Stepped) and event.optimizer == optimizer


def _in_stages(site: Site) -> bool:
    """Say whether the loop around a line goes through stages, tasks or folds: each is a training of its own."""
    for frame in site:
        for loop in loops_around(frame):
            return (
                isinstance(loop, ast.For) and bool(_STAGES.search(ast.unparse(loop.target)))
            ) or _over_list(loop)
    return True


def _over_list(loop: ast.For | ast.While) -> bool:
    return isinstance(loop, ast.For) and isinstance(loop.iter, (ast.List, ast.Tuple, ast.Dict))


def _loaded(run: Run) -> Iterator[Finding]:
    found: dict[Frame, list[StateLoaded]] = defaultdict(list)
    steps = [number for number, _ in run.numbered(Stepped)]
    for number, event in run.numbered(StateLoaded):
        assert isinstance(event, StateLoaded)  # noqa: S101
        last = [one for one in steps if one < number and run.stepped(one).optimizer == event.optimizer]
        then = [one for one in steps if one > number and run.stepped(one).optimizer == event.optimizer]
        if event.after < event.before and event.site and last and then:
            ids: Ids = frozenset().union(*(group.parameters for group in run.made[event.optimizer][0].groups))
            if not _written(run, last[-1], then[0], ids):
                found[event.site[0]].append(event)
    for frame, events in found.items():
        yield RULE.finding(
            frame,
            f"Loading this state leaves {run.optimizer(events[0].optimizer)} with state for {events[0].after} of "
            f"{events[0].before} parameters, {len(events)} time{'s' if len(events) > 1 else ''}, while the model "
            "goes on.",
            why=_WHY,
            advice="Set group['lr'] for another rate; load a state only with the model of the same moment.",
            count=len(events),
            evidence={"before": events[0].before, "after": events[0].after},
        )


RULE = Rule("GG504", "optimizer-state-reset", "error", __doc__ or "", _judge)
