"""Trained parameters are overwritten by hand, which undoes the optimizer's updates.

## What it does
Follows writes to parameters by code outside the optimizer. Reports:

- writes between a forward and its backward;
- a manual descent step with a gradient that the optimizer also uses;
- rounding that reverts the steps;
- updates towards values that never change (a soft update in the wrong direction);
- values that an evaluation writes and doesn't restore (averaged weights, a perturbation).

## Why is this bad?
Gradients of one set of weights are applied to another, or trained weights are overwritten. No error is raised:
writes through ``.data`` or under ``no_grad`` bypass autograd's checks.

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

or evaluate the averages in a separate model.

## Known limits
These writes are not reported: clamping, masks, projections, noise, averages of models, restored checkpoints, and
initializations. Writes before the first step, or late in a long run, are not seen.

## Sources
``torch.Tensor.data`` and "In-place correctness checks" in https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from gradgate.checker.analysis._evaluations import evaluates
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, root_of
from gradgate.checker.analysis._source import loops_around, same_statement, statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Ids, ModeSet, NoGradEntered, OptimizerMade, Stepped, Written

_AVERAGE = re.compile(r"(?i)ema|averag|avg|shadow|polyak|target|slow")
_Writes: TypeAlias = dict[int, Written]  # by the number of the event


def _judge(run: Run) -> Iterator[Finding]:
    yield from _before_backward(run)
    places: dict[Frame, _Writes] = defaultdict(dict)
    for number, event in run.numbered(Written):
        if (
            isinstance(event, Written)
            and event.target == "value"
            and event.site
            and event.parameters & run.owned
        ):
            places[innermost(event.site)][number] = event
    for where, writes in places.items():
        for judge in (_descent, _rounded, _pulled, _left_by_evaluation):
            finding = judge(run, where, writes)
            if finding is not None:
                yield finding
                break


def _before_backward(run: Run) -> Iterator[Finding]:
    """Report parameters that are changed between a forward and its backward."""
    places: dict[Frame, tuple[set[int], list[Backward]]] = {}
    for event in run.of(Backward):
        for parameter, site in event.stale:
            ids, events = places.setdefault(innermost(site), (set(), []))
            ids.add(parameter)
            events.append(event)
    for where, (ids, events) in places.items():
        if not ids & run.owned:
            continue
        count = len({id(event) for event in events})
        yield RULE.finding(
            where,
            f"The values of {run.names(ids)} are changed between a forward and its backward, {count} times.",
            why="The gradients match neither the old values nor the new values.",
            advice="Write to parameters after optimizer.step(), before the next forward.",
            severity="error",
            count=count,
            evidence={"backward_calls": count, "parameters": len(ids)},
        )


def _descent(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    """Report a manual step with a gradient that the optimizer also uses."""
    along = {number: event for number, event in writes.items() if event.along_gradient}
    twice = {
        step
        for number, event in along.items()
        for atom in run.atoms(event.parameters)
        for contribution in run.contributions
        if contribution.atom == atom
        and contribution.backward < number
        and (contribution.cleared is None or contribution.cleared > number)
        for step in contribution.consumed
        if not _written_between(run, event.parameters, number, step)
    }
    # Two or three values may change along their gradient by chance.
    if len(twice) < 2 or _values(run, along) < max(8, 0.9 * _values(run, writes)):
        return None
    name = run.optimizer(run.stepped(min(twice)).optimizer)
    return RULE.finding(
        where,
        f"The script applies the gradient of {run.names(_ids(writes))} by hand, and {name} applies it again, "
        f"in {len(twice)} steps.",
        why="Each gradient is applied twice, the second time with the optimizer's learning rate.",
        advice=f"Remove the manual step: {name}.step() makes the whole update.",
        severity="error",
        count=len(twice),
        evidence={"steps": len(twice)},
    )


def _ids(writes: _Writes) -> Ids:
    return frozenset().union(*(event.parameters for event in writes.values()))


def _values(run: Run, writes: _Writes) -> int:
    """Return the total number of values that are written."""
    ids = [number for event in writes.values() for number in event.parameters]
    return sum(math.prod(run.parameters[number].shape) for number in ids if number in run.parameters)


def _written_between(run: Run, ids: Ids, number: int, step: int) -> bool:
    first, last = sorted((number, step))
    return any(
        isinstance(event, Written) and event.target == "value" and event.parameters & ids
        for event in run.events[first + 1 : last]
    )


def _steps_followed(run: Run, writes: _Writes) -> tuple[int, int]:
    """Return the number of steps that these writes follow, and the number of all steps."""
    ids = _ids(writes)
    steps = [number for number, event in run.numbered(Stepped) if event.used & ids]  # type: ignore[attr-defined]
    ends = [*steps, len(run.events)][1:]
    hit = sum(any(step < number < end for number in writes) for step, end in zip(steps, ends, strict=True))
    return hit, len(steps)


def _rounded(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    undoing = {number: event for number, event in writes.items() if event.undoes}
    hit, steps = _steps_followed(run, undoing)
    if hit < 3 or 2 * hit < steps - 1:
        return None
    return RULE.finding(
        where,
        f"The script rounds {run.names(_ids(undoing))} in place, which reverts most of the last step, {hit} times.",
        why="Steps smaller than the rounding grid are lost: the weights don't change.",
        advice="Keep the weights in full precision and round a copy in the forward: "
        "w + (quantize(w) - w).detach().",
        count=hit,
        evidence={"steps_taken_back": hit, "steps": steps},
    )


def _pulled(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    pulling = {number: event for number, event in writes.items() if event.pulled is not None}
    least = min((event.pulled or 0.0 for event in pulling.values()), default=0.0)
    hit = _steps_followed(run, pulling)[0]
    if hit < 3 or 2 * hit < _steps_followed(run, writes)[0]:
        return None
    if least < 0.1 and (not pulling or not _towards_average(where)):
        return None  # a small change keeps the weights near a pretrained model
    return RULE.finding(
        where,
        f"The script moves {run.names(_ids(pulling))} {least:.0%} of the way to values that never change, "
        f"{hit} times.",
        why="Each optimizer step is partly reverted, and the other network is never updated.",
        advice="Move the average towards the trained values instead: "
        f"average.lerp_(trained, {max(min(least, 1 - least), 0.001):.2g}), under torch.no_grad().",
        count=hit,
        evidence={"share": least, "writes": hit},
    )


def _towards_average(where: Frame) -> bool:
    """Return whether a line moves parameters towards a network that is named as their average."""
    for loop in loops_around(where)[:1]:
        several = loop.iter if isinstance(loop, ast.For) else None
        pair = loop.target.elts if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) else []
        statement = statement_at(where)
        if (
            not isinstance(several, ast.Call)
            or called(several) != "zip"
            or not len(pair) == len(several.args) == 2
        ):
            return False
        names = [ast.unparse(each) for each in pair]
        written = root_of(getattr(statement, "value", None) or ast.Constant(0))
        if written in names:
            place = names.index(written)
            texts = [ast.unparse(each) for each in several.args]
            return bool(_AVERAGE.search(texts[1 - place])) and not _AVERAGE.search(texts[place])
    return False


def _left_by_evaluation(run: Run, where: Frame, writes: _Writes) -> Finding | None:
    """Report values that an evaluation writes into trained parameters, if training continues from them."""
    left = {number: event for number, event in writes.items() if _remains(run, number, event)}
    if not left or 2 * len(left) < len(writes) - 1:
        return None
    hit, steps = _steps_followed(run, left)
    before_eval = hit <= max(1, 2 * steps / 3) and all(_evaluated_next(run, *write) for write in left.items())
    if not before_eval and not any(evaluates(run, frame) for frame in next(iter(left.values())).site):
        return None
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
