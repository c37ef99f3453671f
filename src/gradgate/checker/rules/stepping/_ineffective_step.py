"""Optimizer steps don't change any parameter.

## What it does
Compares parameters before and after steps, and asks who writes to them. Reports:

- an optimizer that never steps although losses compute gradients for its parameters;
- an optimizer that always steps before there is a gradient, or that holds none of the parameters that losses reach;
- an optimizer whose learning rate is zero in every step;
- updates that 16-bit parameters round away: their values never change, or less than 40% of the updates is kept;
- gradients computed again and again for tensors that nothing ever changes (a note: an update by hand that makes a
  new tensor looks like a script that only reads gradients).

## Why is this bad?
Nothing is trained. The loss varies with the batches, which looks like slow learning.

## Example
    for p in params:
        p = p - lr * p.grad      # a new tensor, assigned to the loop variable

## Use instead
    for p in params:
        p -= lr * p.grad         # in place, under torch.no_grad()

## Known limits
A learning rate that is zero while other optimizers step is a note. So is an optimizer that never steps if nothing
clears its gradients. Averages, limits and copies that a loop writes to a new tensor are not found, nor is a leaf
that is rebound to a constant. Rounding is reported only for torch's own optimizers. If most values change now and
then, it is reported only for SGD, Adam and AdamW.

## Sources
https://docs.pytorch.org/docs/stable/optim.html, "Taking an optimization step"
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from math import prod

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._optimizer_names import as_written
from gradgate.checker.analysis._parameter_usage import misdirected, replaced
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import function_at, inside, path_to, text_of, tree_of
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import stepping as texts
from gradgate.events import (
    Backward,
    Differentiated,
    Frame,
    Ids,
    ScalerUsed,
    Scheduled,
    SchedulerMade,
    Site,
    Stepped,
)

_LEAST = 3  # steps, or backward calls
_GRADIENTS = 5  # of tensors that nothing changes
_LEAST_ROUNDED = 8  # steps under a close look, at the highest rate or after it


def _judge(run: Run) -> Iterator[Finding]:
    yield from _read_only(run)
    for optimizer in run.made:
        steps = [event for event in run.of(Stepped) if event.optimizer == optimizer]
        finding = _of_steps(run, optimizer, steps) if steps else _not_stepped(run, optimizer)
        yield from filter(None, [finding])


def _of_steps(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    used, moved = any(event.used for event in steps), any(event.moved for event in steps)
    if len(steps) < _LEAST or (moved and not used):
        return None
    if not used:
        return _without_gradient(run, optimizer, steps)
    seen = sum(event.seen for event in steps)
    if not moved and seen >= _LEAST and all(event.lr and not any(event.lr) for event in steps):
        return _without_rate(run, optimizer, steps)
    return _rounded_away(run, optimizer, steps)


def _not_stepped(run: Run, optimizer: int) -> Finding | None:
    held, name = run.held(optimizer), run.optimizer(optimizer)
    reaching = run.calls_reaching(held)
    shared = any(run.owners[parameter] - {optimizer} for parameter in held)
    still = all(run.parameters[number].still for number in held & run.parameters.keys())
    scaled = any(event.op == "step" for event in run.of(ScalerUsed))
    # Of several ranks, others may step.
    if (
        shared
        or not still
        or scaled
        or len(reaching) < _LEAST
        or run.ended != "finished"
        or run.log.world > 1
    ):
        return None
    if run.written("value"):
        return None
    cleared = sum(part.is_lost for part in run.contributions if part.atom & held)
    attack = any(event.others for event in reaching)
    name = as_written(name, reaching[-1].site)
    return RULE.say(
        _step_at(reaching[-1].site, name),
        texts.NEVER_STEPPED,
        severity=None if cleared >= _LEAST and not attack else "info",
        count=len(reaching),
        about=held,
        optimizer=name,
        calls=len(reaching),
        parameters=run.names(held),
    )


def _step_at(site: Site, name: str) -> Site | Frame:
    """Return the line that would step the optimizer, or the ``if`` around it; else the backward call's."""
    for frame in site:
        for node in inside(ast.Attribute, function_at(frame)):
            if ast.unparse(node) == f"{name}.step":
                path = path_to(frame.file, node.lineno)
                lines = [
                    each.lineno for each in path if isinstance(each, ast.If) and each.lineno > frame.line
                ]
                return frame._replace(line=[*lines, node.lineno][0])
    return site


def _without_gradient(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    held, name = run.held(optimizer), run.optimizer(optimizer)
    meant = misdirected(run, optimizer)
    if meant and not any(swap.optimizer == optimizer for swap in replaced(run)):
        frozen = not any(run.parameters[number].trainable for number in held if number in run.parameters)
        return RULE.say(
            run.made[optimizer][0].site,
            texts.HOLDS_OTHERS,
            count=len(steps),
            about=held | meant,
            optimizer=name,
            steps=len(steps),
            held=run.names(held) + (" (frozen)" if frozen else ""),
            reached=run.names(meant),
        )
    reaching = [number for number, event in run.numbered(Backward) if event.reached & held]
    if len(reaching) < 2 or run.steps(optimizer)[0] > reaching[0]:
        return None
    return RULE.say(
        steps[0].site,
        texts.STEPS_FIRST,
        fix=_after_backward,
        count=len(steps),
        about=held,
        optimizer=name,
        steps=len(steps),
    )


def _without_rate(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    made = run.made[optimizer][0]
    schedules = [each for each in run.of(SchedulerMade) if each.optimizer == optimizer]
    numbers = {each.scheduler for each in schedules}
    advanced = sum(event.scheduler in numbers for event in run.of(Scheduled))
    if run.ended != "finished" or (schedules and advanced < 2):  # the latter is scheduler-cadence
        return None
    positive = any(group.lr or group.lr is None for group in made.groups)
    return RULE.say(
        schedules[-1].site if positive and schedules else made.site,
        texts.NO_RATE,
        severity="info" if run.moved else None,
        count=len(steps),
        about=run.held(optimizer),
        optimizer=run.optimizer(optimizer),
        steps=len(steps),
    )


def _rounded_away(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    """Report 16-bit parameters most of whose updates are smaller than half the distance to the next number."""
    rates = [max(event.lr, default=0.0) for event in steps]
    # A schedule may still raise the rate, or keep a group's rate at zero.
    seen = [event for event in steps[rates.index(max(rates)) :] if event.seen]
    if len(seen) < _LEAST_ROUNDED or not all(map(any, zip(*(event.lr for event in steps), strict=False))):
        return None
    ids, used = seen[-1].rounded, seen[-1].used - seen[-1].zero
    if 2 * _size(run, ids) <= _size(run, used):
        return None
    return RULE.say(
        run.made[optimizer][0].site,
        texts.ROUNDED_AWAY,
        severity=None if ids == used else "warning",
        count=len(steps),
        about=ids,
        optimizer=run.optimizer(optimizer),
        steps=len(steps),
        parameters=run.names(ids),
        rate=max(rates),
        dtype=" or ".join(sorted({run.parameters[number].dtype for number in ids})),
    )


def _size(run: Run, ids: Ids) -> int:
    """Return the number of elements of some parameters."""
    return sum(prod(run.parameters[number].shape) for number in ids if number in run.parameters)


def _read_only(run: Run) -> Iterator[Finding]:
    """Note the lines that compute gradients of the same tensors again and again, if nothing changes them."""
    if run.stepping or run.owned or run.written("value") or run.ended != "finished":
        return
    calls: Counter[tuple[Site, Ids]] = Counter()
    for event in run.of(Backward, Differentiated):
        ids = event.asked if isinstance(event, Differentiated) else event.reached
        calls[event.site, ids] += 1
    # Values that the calls compute are new each time.
    again = union(ids for (_, ids), times in calls.items() if times >= _GRADIENTS)
    ids = frozenset(number for number in again if run.parameters[number].still)
    times = sum(count for (_, reached), count in calls.items() if reached & ids)
    if ids:
        site = next(site for (site, reached) in calls if reached & ids)
        yield RULE.say(
            _update_at(site),
            texts.NOTHING_WRITES,
            severity="info",
            count=times,
            calls=times,
            parameters=run.names(ids),
        )


def _update_at(site: Site) -> Frame:
    """Return the last line that subtracts from a value, preferring lines about gradients; else the call's."""
    outermost, tree = site[-1], tree_of(site[-1].file)
    lines = [node.lineno for node in inside(ast.BinOp, tree) if isinstance(node.op, ast.Sub)]
    lines += [call.lineno for call in inside(ast.Call, tree) if called(call) == "sub"]
    places = [outermost._replace(line=line) for line in sorted(lines)]
    named = [frame for frame in places if "grad" in text_of(frame)]
    return (named or places or [site[0]])[-1]


def _after_backward(at: Statement) -> Fix:
    """Move the step after the backward calls that come before another step."""
    backward = at.later("backward")
    if method(at.node) != "step" or not backward:
        return ()
    later = [step.lineno for step in at.steps() if step.lineno > backward[0].lineno]
    last = [node.lineno for node in backward if node.lineno < min(later, default=10**9)][-1]
    return (Move(at.line, after=last),)


RULE = Rule("GG304", "ineffective-step", "error", __doc__ or "", _judge)
