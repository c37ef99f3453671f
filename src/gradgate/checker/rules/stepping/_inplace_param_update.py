"""Trained parameters are overwritten by hand, which undoes updates, or copied onto themselves.

## What it does
Follows the writes to the memory of parameters by code outside the optimizer. Reports:

- updates towards values that never change (a soft update in the wrong direction);
- an evaluation that overwrites parameters (with averaged weights, or a perturbation) and doesn't restore them;
- parameters that are copied onto themselves: a target network that is the trained network, a network that loads its
  own state, or a best state that is kept without a copy and loaded later.

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
        backup = copy.deepcopy(model.state_dict())
        for p, average in zip(model.parameters(), averages):
            p.data.copy_(average)
        ...
        model.load_state_dict(backup)

## Known limits
These writes are not reported: clamping, masks, projections, rounding, added noise, hand-written gradient descent,
averages of models, restored checkpoints, initializations, and moves of less than 10% towards other weights, such as
those of a pretrained model. Writes before the first step, or late in a long run, are not seen. A list that repeats
one module, ``[build()] * n``, is not reported. A best model that is the trained model itself is found only if its
state is loaded again.

## Sources
``torch.Tensor.data`` and "In-place correctness checks" in https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import stepping as texts
from gradgate.events import (
    Backward,
    Frame,
    Gap,
    Ids,
    ModelLoaded,
    ModeSet,
    NoGradEntered,
    OptimizerMade,
    Stepped,
    Written,
)

_COPIES = ("copy_", "data", "set_", "lerp_")
_Writes: TypeAlias = dict[int, Written]  # by the number of the event


def _judge(run: Run) -> Iterator[Finding]:
    values = [pair for pair in run.numbered(Written) if pair[1].target == "value" and pair[1].site]
    yield from _onto_themselves(run, values)
    trained = (pair for pair in values if pair[1].parameters & run.owned)
    for where, pairs in grouped((innermost(pair[1].site), pair) for pair in trained).items():
        writes = dict(pairs)
        yield from filter(None, [_pulled(run, where, writes) or _left_by_evaluation(run, where, writes)])


def _onto_themselves(run: Run, values: list[tuple[int, Written]]) -> Iterator[Finding]:
    """Report lines that always write the values that parameters have already, after steps have changed them."""
    steps = [number for number, _ in run.numbered(Stepped)]
    writes: list[tuple[int, Written | ModelLoaded]] = [pair for pair in values if pair[1].op in _COPIES]
    writes += [pair for pair in run.numbered(ModelLoaded) if pair[1].site]
    for site, pairs in grouped((pair[1].site, pair) for pair in writes).items():
        ids, last = union(event.parameters for _, event in pairs), pairs[-1][1]
        loaded = isinstance(last, ModelLoaded)
        if not all(event.own if isinstance(event, ModelLoaded) else event.same for _, event in pairs):
            continue
        if ids and not (ids & run.moved and _is_shared(run, ids)):
            continue
        first = next(
            (n for n, event in run.numbered(Stepped) if event.used & ids or not ids), len(run.events)
        )
        times = len({sum(step < number for step in steps) for number, _ in pairs if number > first})
        kept = isinstance(last, ModelLoaded) and last.steps > 0 and last.taken
        if times >= (1 if kept else 2):
            yield RULE.say(
                kept or site,
                texts.KEPT if kept else texts.ONTO_ITSELF,
                severity=None if loaded else "info",  # equal values don't prove that the memory is shared
                count=times,
                about=ids,
                parameters=run.names(ids) if ids else "a network",
                times=times,
                line=innermost(site).line,
            )


def _is_shared(run: Run, ids: Ids) -> bool:
    """Return whether these are most parameters of an optimizer. Two networks may share a small part."""
    return any(2 * len(ids & run.held(each)) >= len(run.held(each)) for each in run.optimizers_of(ids))


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
    hit, steps = _steps_followed(run, pulling)
    # A small change keeps the weights near a pretrained model, unless it is rare.
    rare = 3 * hit <= 2 * steps
    if run.of(Gap):
        return None  # how rare a write is, the log does not tell
    if hit < 3 or (least < 0.1 and not rare) or 2 * hit < _steps_followed(run, writes)[0]:
        return None
    rate = max(min(least, 1 - least), 0.001)
    return RULE.say(
        where, texts.PULLED, count=hit, parameters=run.names(_ids(writes)), share=least, times=hit, rate=rate
    )


def _left_by_evaluation(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    """Report values that an evaluation writes into trained parameters, if training continues from them."""
    left = {number: event for number, event in writes.items() if _remains(run, number, event)}
    if not left or 2 * len(left) < len(writes) - 1:
        return None
    hit, _ = _steps_followed(run, left)
    if not all(_evaluated_next(run, *write) for write in left.items()):
        return None
    return RULE.say(where, texts.LEFT, count=hit, parameters=run.names(_ids(left)), times=hit)


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
            return innermost(later.site) != innermost(event.site)
    return False


RULE = Rule("GG305", "inplace-param-update", "warning", __doc__ or "", _judge)
