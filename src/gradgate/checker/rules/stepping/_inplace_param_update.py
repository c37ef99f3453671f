"""Trained parameters are overwritten by hand, which undoes updates, or copied onto themselves.

## What it does
Follows writes to parameters by code outside the optimizer. Reports:

- updates towards values that never change (a soft update in the wrong direction);
- an evaluation that overwrites parameters (with averaged weights, or a perturbation) and doesn't restore them;
- a target network that is the trained network itself, or that loads its own state: updating it changes nothing;
- a list that repeats one trained module: ``[build()] * n``;
- a best or first state that is kept without a copy and loaded later, which restores nothing.

## Why is this bad?
Trained weights are overwritten. No error is raised: writes through ``.data`` or under ``no_grad`` bypass autograd's
checks. ``state_dict()`` and an assignment copy nothing, so each step also changes what was to keep earlier values.

## Example
    def validate():
        for p, average in zip(model.parameters(), averages):
            p.data.copy_(average)                # training continues from these values
        ...

## Use instead
    def validate():
        backup = [p.detach().clone() for p in model.parameters()]
        for p, average in zip(model.parameters(), averages):
            p.data.copy_(average)
        ...
        for p, kept in zip(model.parameters(), backup):
            p.data.copy_(kept)

or evaluate the averages in a separate model. Copy what is to keep its values: ``copy.deepcopy(network)``,
``copy.deepcopy(model.state_dict())``.

## Known limits
These writes are not reported: clamping, masks, projections, rounding, added noise, hand-written gradient descent,
averages of models, restored checkpoints, initializations, and moves of less than 10% towards other weights, such
as those of a pretrained model. Writes before the first step, or late in a long run, are not seen. A best model that
is the trained model itself is found only if its state is loaded again.

## Sources
``torch.Tensor.data`` and "In-place correctness checks" in https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from gradgate.checker.analysis._gradient_modes import evaluates
from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import same_statement
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.stepping._own_copies import own_copies
from gradgate.checker.rules.stepping._repeated_modules import repeated_modules
from gradgate.events import Backward, Frame, Ids, ModeSet, NoGradEntered, OptimizerMade, Stepped, Written

_Writes: TypeAlias = dict[int, Written]  # by the number of the event


def _judge(run: Run) -> Iterator[Finding]:
    yield from own_copies(run, RULE)
    yield from repeated_modules(run, RULE)
    values = [pair for pair in run.numbered(Written) if pair[1].target == "value" and pair[1].site]
    trained = (pair for pair in values if pair[1].parameters & run.owned)
    for where, pairs in grouped((innermost(pair[1].site), pair) for pair in trained).items():
        writes = dict(pairs)
        yield from filter(None, [_pulled(run, where, writes) or _left_by_evaluation(run, where, writes)])


def _ids(writes: _Writes) -> Ids:
    return union(event.parameters for event in writes.values())


def _steps_followed(run: Run, writes: _Writes) -> tuple[int, int]:
    """Return the number of steps that these writes follow, and the number of all steps."""
    ids = _ids(writes)
    steps = [number for number, event in run.numbered(Stepped) if event.used & ids]
    pairs = pairwise([*steps, len(run.events)])
    return sum(any(step < number < end for number in writes) for step, end in pairs), len(steps)


def _pulled(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    pulling = {number: event for number, event in writes.items() if event.pulled is not None}
    least = min((event.pulled or 0.0 for event in pulling.values()), default=0.0)
    hit = _steps_followed(run, pulling)[0]
    # A small change keeps the weights near a pretrained model.
    if hit < 3 or least < 0.1 or 2 * hit < _steps_followed(run, writes)[0]:
        return None
    return _moved(run, where, pulling)


def _moved(run: Run, where: Frame, pulling: _Writes) -> Finding:
    least, hit = min(event.pulled or 0.0 for event in pulling.values()), _steps_followed(run, pulling)[0]
    return RULE.finding(
        where,
        f"The script moves {run.names(_ids(pulling))} {100 * least:.3g}% of the way to values that never change, "
        f"{hit} times.",
        why="Each optimizer step is partly reverted, and the other network is never updated.",
        advice="Move the average towards the trained values instead: "
        f"average.lerp_(trained, {max(min(least, 1 - least), 0.001):.2g}), under torch.no_grad().",
        count=hit,
        evidence={"share": least, "writes": hit},
    )


def _left_by_evaluation(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    """Report values that an evaluation writes into trained parameters, if training continues from them."""
    left = {number: event for number, event in writes.items() if _remains(run, number, event)}
    if not left or 2 * len(left) < len(writes) - 1:
        return None
    hit, steps = _steps_followed(run, left)
    before_eval = hit <= max(1, 2 * steps / 3) and all(_evaluated_next(run, *write) for write in left.items())
    if not before_eval and not any(evaluates(run, frame) for frame in next(iter(left.values())).site):
        return None
    pulling = {number: event for number, event in left.items() if event.pulled is not None}
    if 2 * _steps_followed(run, pulling)[0] > hit:  # an average in the wrong direction
        return _moved(run, where, pulling)
    return RULE.finding(
        where,
        f"An evaluation overwrites {run.names(_ids(left))} and doesn't restore the values, {hit} times: "
        "training continues from them.",
        why="The trained weights are replaced, but the optimizer's state belongs to the old weights.",
        advice="Copy the weights before the evaluation and restore them after it, or evaluate a copy of the model.",
        count=hit,
        evidence={"writes": hit, "steps": steps},
    )


def _remains(run: Run, number: int, event: Written) -> bool:
    """Return whether the parameters' next step finds the values of this write unchanged."""
    if event.restored or not event.whole:
        return False
    for later in run.events[number + 1 :]:
        if isinstance(later, OptimizerMade):
            return False
        if isinstance(later, Stepped) and later.used & event.parameters:
            return bool(later.changed & event.parameters)
    return False


def _evaluated_next(run: Run, number: int, event: Written) -> bool:
    """Return whether a whole module is written and an evaluation follows before the next backward."""
    if event.op not in ("copy_", "data", "set_"):
        return False
    for later in run.events[number + 1 :]:
        if isinstance(later, (Backward, Stepped)):
            return False
        if isinstance(later, ModeSet) and not later.training and later.parameters & event.parameters:
            return True
        if isinstance(later, NoGradEntered):
            return not same_statement(innermost(later.site), innermost(event.site))
    return False


RULE = Rule("GG305", "inplace-param-update", "warning", __doc__ or "", _judge)
