"""Optimizer steps don't change any parameter.

## What it does
Compares parameters before and after steps. Reports:

- an optimizer whose learning rate is always zero, whose ``step`` is never called, or waits for a condition that
  never holds;
- a variable to which a loop assigns several optimizers, only the last of which steps;
- an optimizer that always steps before there is a gradient, or that holds none of the parameters that losses reach;
- an optimizer that clears the gradients of a network in each step and whose own loss doesn't reach the network;
- updates that 16-bit parameters round away: their values never change, or less than 40% of the updates is kept;
- updates by hand that rebind a name, drop their result, bind it to a name that the loop doesn't read, replace a
  leaf by a constant or a result without gradients, or change a leaf in place outside ``no_grad``;
- averages, limits and copies that a loop over parameters writes to a new tensor (``p = p * m + q * (1 - m)``).

## Why is this bad?
Nothing is trained. The loss varies with the batches, which looks like slow learning.

## Example
    def sgd(params, lr):
        with torch.no_grad():
            for p in params:
                p = p - lr * p.grad      # a new tensor, assigned to the loop variable

## Use instead
            for p in params:
                p -= lr * p.grad         # in place

## Known limits
A learning rate of zero at the start of a warm-up is correct. A learning rate that is always zero while other
optimizers step is reported as a note. If a run is stopped early, a learning rate that might still rise is not
reported. Not found: updates whose variable is read again, updates in a dict that the loop reads but never copies
back, and averages in a helper that rebinds its argument. Rounding is reported only for torch's own optimizers. If
most values change now and then, it is reported only for SGD, Adam and AdamW. An optimizer that some line might step
is reported as never stepped only if the script steps no optimizer and reads no gradients.

## Sources
https://docs.pytorch.org/docs/stable/optim.html, "Taking an optimization step"
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from math import prod

from gradgate.checker.analysis._optimizer_names import as_written
from gradgate.checker.analysis._origins import computed_rate, rate_set_by_hand, rounded_for, rounds
from gradgate.checker.analysis._parameter_usage import misdirected, replaced
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, tree_of
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Insert, Move, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.clearing._skipped_batch import UNUSUAL
from gradgate.checker.rules.flow._zero_gradient import not_rounded
from gradgate.checker.rules.stepping._cleared_parts import cleared_parts
from gradgate.checker.rules.stepping._idle_calls import calls_step, waiting_step
from gradgate.checker.rules.stepping._lost_writes import lost_writes
from gradgate.checker.rules.stepping._replaced_optimizers import are_read, replaced_optimizers
from gradgate.checker.rules.stepping._unread_updates import unread_updates
from gradgate.checker.rules.stepping._updates_by_hand import lost_updates, rebound_leaves, replaced_leaves
from gradgate.events import Backward, Frame, Ids, ScalerUsed, Scheduled, SchedulerMade, Site, Stepped

_WHY = "Nothing is trained: the parameters keep their initial values."
_LEAST = 3  # steps, or backward calls
_LEAST_ROUNDED = (
    8  # steps under a close look, at the highest rate or after it; a second optimizer may get no more
)


def _judge(run: Run) -> Iterator[Finding]:
    by_hand = [*lost_updates(run, RULE)] or [*unread_updates(run, RULE)]
    yield from by_hand or rebound_leaves(run, RULE)
    yield from replaced_leaves(run, RULE)
    yield from lost_writes(run, RULE)
    yield from cleared_parts(run, RULE)
    several = [*replaced_optimizers(run, RULE)] if not by_hand else []
    yield from several
    for optimizer in run.made if not by_hand else ():
        if any(run.held(optimizer) & each.about for each in several):
            continue
        steps = [event for event in run.of(Stepped) if event.optimizer == optimizer]
        finding = _not_stepped(run, optimizer) if not steps else _still(run, optimizer, steps)
        yield from filter(None, [finding])


def _still(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    used, moved = any(event.used for event in steps), any(event.moved for event in steps)
    if len(steps) < _LEAST or (moved and not used):
        return None
    if not used:
        return _misdirected(run, optimizer, steps) or _without_gradient(run, optimizer, steps)
    seen = sum(event.seen for event in steps)
    if not moved and seen >= _LEAST and all(event.lr and not any(event.lr) for event in steps):
        return _without_rate(run, optimizer, steps)
    return _rounded_away(run, optimizer, steps)


def _rounded_away(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    """Report 16-bit parameters most of whose updates are smaller than half the distance to the next number."""
    rates = [max(event.lr, default=0.0) for event in steps]
    highest = rates.index(max(rates))
    # A schedule may still raise the rate, or keep a group's rate at zero.
    seen = [event for event in steps[highest:] if event.seen]
    if len(seen) < _LEAST_ROUNDED or not all(map(any, zip(*(event.lr for event in steps), strict=False))):
        return None
    ids, used = seen[-1].rounded, seen[-1].used - seen[-1].zero
    if 2 * _size(run, ids) <= _size(run, used):
        return None
    kind = " or ".join(sorted({run.parameters[number].dtype for number in ids}))
    return RULE.finding(
        run.made[optimizer][0].site,
        f"{len(steps)} steps of {run.optimizer(optimizer)} hardly moved {run.names(ids)}, although the gradients "
        f"are not zero: at learning rate {max(rates):g}, {kind} rounds most of their updates away.",
        why=f"An update below half the distance to the next {kind} number has no effect, however often it is "
        "repeated.",
        advice="Keep the parameters in float32 and run the forward pass under torch.autocast.",
        severity=None if ids == used else "warning",
        count=len(steps),
        evidence={"steps": len(steps), "lr": max(rates), "parameters": len(ids)},
        about=ids,
    )


def _size(run: Run, ids: Ids) -> int:
    """Return the number of elements of some parameters."""
    return sum(prod(run.parameters[number].shape) for number in ids if number in run.parameters)


def _without_rate(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    made = run.made[optimizer][0]
    if run.ended != "finished" or any(group.lr is None for group in made.groups):
        return None
    where: Site | Frame = made.site
    advice = "Set the learning rate of the optimizer above zero."
    schedules = {each.scheduler: each.site for each in run.of(SchedulerMade) if each.optimizer == optimizer}
    positive = any(group.lr for group in made.groups)
    by_hand = None if schedules else rate_set_by_hand(steps[0].site)
    computed = by_hand or computed_rate(made.site)
    if positive and schedules:
        if sum(event.scheduler in schedules for event in run.of(Scheduled)) < 2:
            return None  # scheduler-cadence reports a schedule that isn't advanced
        where = schedule = [*schedules.values()][-1]
        computed, advice = (
            rounded_for(schedule),
            "Make the schedule's factor positive from the first step on.",
        )
    elif positive and by_hand is None:
        return None
    if computed is not None:
        where, advice = computed, "Don't round the learning rate to zero: use / instead of //."
        if not rounds(computed):
            advice = f"Line {computed.line} sets the learning rate to 0: use a positive value there."
    return RULE.finding(
        where,
        f"The learning rate of {run.optimizer(optimizer)} is 0 in all of its {len(steps)} steps.",
        why=_WHY,
        advice=advice,
        fix=_rate_not_rounded,
        severity="info" if run.moved else None,
        count=len(steps),
        evidence={"steps": len(steps), "lr": 0.0},
        about=run.held(optimizer),
    )


def _misdirected(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    """Report an optimizer that holds none of the parameters that the losses reach."""
    meant, held, name = misdirected(run, optimizer), run.held(optimizer), run.optimizer(optimizer)
    if not meant or any(swap.optimizer == optimizer for swap in replaced(run)):
        return None
    frozen = not any(run.parameters[number].trainable for number in held if number in run.parameters)
    are = ", which is frozen" if len(held) == 1 else ", which are frozen"
    return RULE.finding(
        run.made[optimizer][0].site,
        f"None of {len(steps)} steps of {name} had a gradient: {name} holds {run.names(held)}"
        f"{are if frozen else ''}, but the losses reach {run.names(meant)}, "
        f"which no {'step changes any more' if meant & run.owned else 'optimizer holds'}.",
        why=_WHY,
        advice=f"Pass {name} the parameters that should be trained: {run.names(meant)}.",
        count=len(steps),
        evidence={"steps": len(steps), "held": len(held), "reached": len(meant)},
        about=held | meant,
    )


def _without_gradient(run: Run, optimizer: int, steps: list[Stepped]) -> Finding | None:
    """Report an optimizer whose steps have no gradient, because each comes before its backward call."""
    held = run.held(optimizer)
    reaching = [number for number, event in run.numbered(Backward) if event.reached & held]
    if len(reaching) < 2 or run.steps(optimizer)[0] > reaching[0]:
        return None
    return RULE.finding(
        steps[0].site,
        f"{run.optimizer(optimizer)} steps before backward(): none of its {len(steps)} steps has a gradient.",
        why=_WHY,
        advice="Clear, call backward(), then step.",
        fix=_after_backward,
        count=len(steps),
        evidence={"steps": len(steps), "backward_calls": len(reaching)},
        about=held,
    )


def _not_stepped(run: Run, optimizer: int) -> Finding | None:
    """Report an optimizer that never steps: its ``step`` lacks parentheses, or doesn't occur at all."""
    held, name = run.held(optimizer), run.optimizer(optimizer)
    reaching = run.calls_reaching(held)
    shared = any(run.owners[parameter] - {optimizer} for parameter in held)
    if len(reaching) < _LEAST or shared or run.written("value"):
        return None
    schedules = {event.scheduler for event in run.of(SchedulerMade) if event.optimizer == optimizer}
    advanced = [event.site for event in run.of(Scheduled) if event.scheduler in schedules]
    files = files_of(event.site for event in (*reaching, *run.made[optimizer]))
    named = [
        Frame(file, node.lineno, "")
        for file in files
        for node in inside(ast.Expr, tree_of(file))
        if isinstance(node.value, ast.Attribute) and node.value.attr == "step"
    ]
    parts = [part for part in run.contributions if part.atom & held]
    lost = sum(part.is_lost for part in parts)
    # If gradients are cleared repeatedly, lines that step other optimizers don't count as later steps.
    ran = {frame[:2] for event in run.of(Stepped) for frame in event.site if lost >= _LEAST}
    name = as_written(run.optimizer(optimizer), reaching[-1].site)
    waits = None if named or run.stepping else waiting_step(reaching[-1].site, name)
    kept = waits is not None and not UNUSUAL.search(waits[1])  # of others, skipped-batch reports
    unused_calls = {part.backward for part in parts if part.is_lost or (kept and part.cleared is None)}
    updates = max(len(advanced), len(unused_calls))
    idle = updates >= _LEAST and not any(event.op == "step" for event in run.of(ScalerUsed))
    # With several ranks, others may step: GG106 judges that.
    unused = run.log.world == 1 and idle and not run.stepping and not are_read(run, parts, files)
    may_step = run.ended != "finished" or (not unused and any(calls_step(file, name, ran) for file in files))
    if not named and (may_step or any(not run.parameters[n].still for n in held & set(run.parameters))):
        return None
    # Whether the scheduler is stepped in the place of the optimizer.
    in_place = not (named or run.stepping) and 2 * len(advanced) > len(reaching)
    waits = None if in_place else waits
    beside = f", while its scheduler is advanced {len(advanced)} times" if in_place else ""
    return RULE.finding(
        named[0] if named else advanced[-1] if in_place else waits[0] if waits else reaching[-1].site,
        f"{name}.step is never called: {len(reaching)} backward calls compute gradients that no step uses"
        + (f". `{waits[1]}` never lets the step of line {waits[2]} run." if waits else f"{beside}."),
        why=f"{run.names(held)} keep their initial values." if run.stepping else _WHY,
        advice="Check the condition, and where its variables are set."
        if waits
        else f"Call {name}.step(){', with parentheses,' if named else ''} after backward()"
        + (", before its scheduler is advanced." if in_place else "."),
        fix=_called if named else partial(_step_too, name=name),
        count=len(reaching),
        evidence={"backward_calls": len(reaching)},
        about=held,
    )


# The fix


def _step_too(at: Statement, *, name: str) -> Fix:
    """Insert the step after the other steps that follow the backward call."""
    steps, known = at.later("step"), at.knows(re.split(r"[.[]", name)[0])
    return (Insert(f"{name}.step()", after=steps[-1].lineno),) if steps and known else ()


def _after_backward(at: Statement) -> Fix:
    """Move the step after the backward calls that come before another step."""
    backward = at.later("backward")
    if method(at.node) != "step" or not backward:
        return ()
    later = [step.lineno for step in at.steps() if step.lineno > backward[0].lineno]
    last = [node.lineno for node in backward if node.lineno < min(later, default=10**9)][-1]
    return (Move(at.line, after=last),)


def _called(at: Statement) -> Fix:
    """Add the missing parentheses to the step."""
    match at.node:
        case ast.Expr(ast.Attribute(attr="step") as value):
            return (Replace(at.line, ast.unparse(value), f"{ast.unparse(value)}()"),)
    return ()


def _rate_not_rounded(at: Statement) -> Fix:
    """Divide without rounding, if the statement computes a learning rate."""
    around = f"{getattr(at.function, 'name', '')} {ast.unparse(at.node)}"
    of_rate = re.search("lr|rate|lambda|warm|factor", around, re.IGNORECASE)
    return not_rounded(at) if of_rate else ()


RULE = Rule("GG304", "ineffective-step", "error", __doc__ or "", _judge)
