"""The optimizer's momentum and running averages are lost in the middle of training.

## What it does
Looks for a line that constructs an optimizer again and again for the same parameters, although the parameters keep
their values. Also looks for ``load_state_dict`` calls that leave an optimizer with less state than before.

## Why is this bad?
Adam's averages start from zero with a bias correction, so the first steps are as long as the learning rate allows,
whatever the gradient. SGD loses its momentum.

## Example
    def train_epoch(model, loader):
        optimizer = torch.optim.Adam(model.parameters())      # in every epoch
        for x, y in loader: ...

## Use instead
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        train_epoch(model, loader, optimizer)

To change only the learning rate, write ``group["lr"] = lr`` or use a scheduler.

## Known limits
A new optimizer is assumed to be intended if no loop constructs it again, or if the parameters are reset in between.
It is an error if it makes a single step, or if the innermost loop around its step also constructs it, or if a loop
whose header or function names epochs constructs it for one pass over the data. Any other loop may run over tasks,
folds or rounds of pruning, each a training run of its own. This is a note.

## Sources
Kingma and Ba, "Adam: a method for stochastic optimization", section 3.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import loops_around
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import ownership as texts
from gradgate.events import Frame, Ids, OptimizerMade, Site, StateLoaded, Stepped, Written

_EPOCH = re.compile(r"epoch|\bep?\b", re.IGNORECASE)


def _judge(run: Run) -> Iterator[Finding]:
    yield from _loaded(run)
    made = grouped(
        (
            (innermost(event.site), event.kind, union(group.parameters for group in event.groups)),
            (number, event.optimizer),
        )
        for number, event in run.numbered(OptimizerMade)
        if not event.added and _keeps_state(event)
    )
    for (_, kind, ids), several in made.items():
        resets = {
            number: run.stepped(next(step for step in run.steps(new) if step > number)).site
            for (_, old), (number, new) in itertools.pairwise(several)
            if _continues(run, old, new, number, ids)
        }
        again = run.events[max(resets)].site if resets else ()
        if not resets or len(resets) * 2 < len(several) - 1 or not _loops(again):
            continue
        steps = max(run.stepping[optimizer] for _, optimizer in several)
        apart = steps > 1 and not any(
            _in_one_training(run.events[number].site, step) for number, step in resets.items()
        )
        yield RULE.say(
            # The first call of a function that constructs optimizers may be correct.
            next((frame for frame in again if frame not in run.events[several[0][0]].site), innermost(again)),
            texts.MADE_AGAIN,
            severity="info" if apart else None,
            count=len(several),
            kind=kind,
            made=len(several),
            names=run.names(ids),
            most=steps,
            s="s" if steps > 1 else "",
            begin="If the training continues: construct" if apart else "Construct",
        )


def _keeps_state(event: OptimizerMade) -> bool:
    """Return whether an optimizer keeps state for its parameters: momentum, or squares of gradients."""
    return event.kind not in ("SGD", "LBFGS") or any(group.momentum for group in event.groups)


def _continues(run: Run, old: int, new: int, made: int, ids: Ids) -> bool:
    """Return whether a new optimizer continues the training of an old one."""
    before, after = run.steps(old), [number for number in run.steps(new) if number > made]
    if not before or not after or before[-1] > made:  # both continue
        return False
    between = sum(isinstance(event, Stepped) for event in run.events[before[-1] + 1 : after[0]])
    if between >= len(before):  # other optimizers stepped: blocks are trained one after the other
        return False
    first = run.stepped(after[0])
    if first.kept and not (first.seen and run.stepped(before[-1]).seen):
        return True
    return not _written(run, before[-1], after[0], ids)


def _in_one_training(made: Site, step: Site) -> bool:
    """Return whether a loop that constructs an optimizer again also steps, or is a loop over epochs."""
    around, stepping = _loops(made), _loops(step)
    if not around or around[0] in stepping[:1]:
        return bool(around)
    if len([loop for loop in stepping if loop not in around]) > 1:  # epochs, and batches in each
        return False
    loop = around[0]
    heads = [loop.target, loop.iter] if isinstance(loop, ast.For) else [loop.test]
    return any(
        map(_EPOCH.search, [*map(ast.unparse, heads), innermost(made).function, innermost(step).function])
    )


def _loops(site: Site) -> list[ast.For | ast.While]:
    """Return the loops around a line, in its function and in the functions that call it, innermost first."""
    return [loop for frame in site for loop in loops_around(frame)]


def _written(run: Run, start: int, end: int, ids: Ids) -> bool:
    """Return whether values were written or state was loaded between two steps, or may have been."""
    if not run.stepped(start).seen or not run.stepped(end).seen:
        return True
    return any(
        (isinstance(event, Written) and event.target == "value" and event.parameters & ids)
        or (isinstance(event, StateLoaded) and event.after)
        for event in run.events[start:end]
    )


def _loaded(run: Run) -> Iterator[Finding]:
    found: dict[Frame, list[StateLoaded]] = defaultdict(list)
    for number, event in run.numbered(StateLoaded):
        steps = run.steps(event.optimizer)
        before, after = [step for step in steps if step < number], [step for step in steps if step > number]
        if not (event.after < event.before and event.site and before and after):
            continue
        if not _written(run, before[-1], after[0], run.held(event.optimizer)):
            found[event.site[0]].append(event)
    for frame, events in found.items():
        yield RULE.say(
            frame,
            texts.STATE_LOST,
            count=len(events),
            optimizer=run.optimizer(events[0].optimizer),
            before=events[0].before,
            after=events[0].after,
            times=len(events),
            s="s" if len(events) > 1 else "",
        )


RULE = Rule("GG504", "optimizer-state-reset", "error", __doc__ or "", _judge)
