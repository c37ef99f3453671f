"""A learning-rate scheduler is advanced too often, too rarely, too early, or never.

## What it does
Counts how often a scheduler is advanced. Compares this number with the optimizer's steps, the passes over the data,
and the schedule's length (``T_max``, ``total_steps``, the last milestone, a number in a ``LambdaLR``'s function).
Reports a scheduler that is never advanced, belongs to an optimizer that was replaced, or is advanced before the
first step or from two lines. Also reports a scheduler that runs several times too fast (its length counts epochs,
but it is advanced at each batch) or too slowly (its length counts steps, but it is advanced once an epoch).

## Why is this bad?
The learning rate stays at its warm-up value, or decays to zero in a fraction of the run. The loss falls, but more
slowly.

## Example
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            loss_fn(model(x), y).backward()
            optimizer.step()
            scheduler.step()             # T_max counts epochs, but this line runs for each batch

## Use instead
    for epoch in range(epochs):
        for x, y in loader:
            ...
            optimizer.step()
        scheduler.step()                 # or T_max=epochs * len(loader), advanced after each step

## Known limits
A schedule that is too slow is found only if the run ends by itself and has as many steps or micro-batches as the
schedule is long, or if it ends before half of a warm-up that a name such as ``warmup_steps`` counts in steps. A run
that is stopped early is not reported. If no DataLoader shows the epochs, a length counts as a number of epochs if
an outer loop has the same length: ``T_max=epochs`` and ``for epoch in range(epochs)``. Otherwise only a rate near
zero for a large part of the run is reported. The rule doesn't follow schedules written by hand, schedulers
constructed again in each epoch, or a ``LambdaLR`` without a known length. If the line that advances a scheduler
didn't run, the scheduler is reported only if this line waits for a flag that is set next to optimizer steps that
didn't run either.

## Sources
https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from gradgate.checker.analysis._origins import length_line
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import inside, loops_around, spans, whole_text
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.checker.rules.stepping._cadence import Cadence, cadences, near
from gradgate.checker.rules.stepping._discarded_optimizer import of_discarded_optimizers
from gradgate.checker.rules.stepping._idle_calls import would_be_advanced
from gradgate.checker.rules.stepping._second_cadence import of_second_cadence
from gradgate.events import Scheduled, Site

_WHY = "The learning rate doesn't follow the schedule for most of the run."
_FROM_ZERO = (
    "StepLR",
    "MultiStepLR",
    "CosineAnnealingLR",
    "PolynomialLR",
    "OneCycleLR",
)  # count calls from 0
_WARMUP_STEPS = re.compile(r"warm\w*(step|iter|batch|update)", re.IGNORECASE)
_WARMUP_EPOCHS = re.compile(r"warm\w*epoch|epochs?_?warm", re.IGNORECASE)
_ONE_COURSE = ("CosineAnnealingLR", "OneCycleLR", "PolynomialLR", "LambdaLR", "SequentialLR")


def _judge(run: Run) -> Iterator[Finding]:
    by_optimizer = cadences(run)
    yield from of_discarded_optimizers(run, RULE, by_optimizer)
    for several in by_optimizer.values():
        if len(several[0].steps) < 2:
            continue
        advanced = [cadence for cadence in several if cadence.calls]
        if not advanced and not any(cadence.by_others for cadence in several):
            yield from _never(several[-1])
        for cadence in advanced:
            found = _early(cadence) or of_second_cadence(cadence, RULE) or _fast(cadence) or _slow(cadence)
            yield from filter(None, [found or _still_warming_up(cadence)])


def _never(cadence: Cadence) -> Iterator[Finding]:
    run, made = cadence.run, cadence.made
    if run.ended == "finished" and not would_be_advanced(run, made):
        yield RULE.finding(
            made.site,
            f"{made.kind} is never advanced: {run.optimizer(made.optimizer)} makes all {len(cadence.steps)} steps "
            f"at the first learning rate, {max(made.lr, default=0.0):g}.",
            why=_WHY,
            advice=f"Call {cadence.call} {cadence.unit}.",
            evidence={"steps": len(cadence.steps), "advanced": 0},
        )


def _early(cadence: Cadence) -> Finding | None:
    """Report a scheduler that the training loop advances before its optimizer's first step."""
    first, step = (cadence.run.events[numbers[0]] for numbers in (cadence.calls, cadence.steps))
    if cadence.calls[0] > cadence.steps[0] or cadence.filled < 0.99 or not isinstance(first, Scheduled):
        return None
    if cadence.calls[-1] > cadence.steps[-1]:  # the optimizer joins later, or the last call follows its step
        return None
    loops = [loop for frame in first.site for loop in loops_around(frame)]
    if not any(loop in loops for frame in step.site for loop in loops_around(frame)):
        return None
    before, after = max(cadence.made.lr, default=0.0), max(first.lr, default=0.0)
    effect = f"the first learning rate, {before:g}, is never used, and training begins at {after:g}"
    if abs(after - before) < 0.01 * before:
        called = Statement.at(innermost(first.site))  # step(epoch) chooses the learning rate itself
        if (
            cadence.made.kind not in _FROM_ZERO
            or not called
            or any(call.args for call in called.calls("step"))
        ):
            return None
        rates = [before, *cadence.advanced_to]
        if max(abs(new - old) for old, new in pairwise(rates)) < 0.01 * max(rates):
            return None
        effect = "each learning rate is used one call too early"
    if before == 0:
        return None
    return RULE.finding(
        first.site,
        f"The schedule is advanced before the first step: {effect}.",
        why="Each step uses the learning rate meant for the next step.",
        advice=f"Call {cadence.call} after {cadence.step}, or at the end of the epoch.",
        fix=_after_later_steps,
        count=len(cadence.calls),
        evidence={"first": before, "used": after},
    )


def _fast(cadence: Cadence) -> Finding | None:
    made, calls, steps, epochs = cadence.made, len(cadence.calls), len(cadence.steps), cadence.epochs
    kind, length = made.kind, made.horizon
    if made.periodic or calls < 2:
        return None
    if kind == "ReduceLROnPlateau":
        if length is None or epochs < 2 or length >= steps / epochs or calls < 0.9 * steps:
            return None
        message = (
            f"{kind} is advanced {cadence.counts} in {epochs} epochs: its patience of {length:g} counts "
            "batches."
        )
        return _finding(cadence, message, "after each epoch, with the validation loss", _after_epoch)
    falls = kind == "LinearLR" and bool(cadence.rates) and cadence.rates[-1] < cadence.rates[0]
    has_course = length is not None and (kind in (*_ONE_COURSE, "MultiStepLR") or falls)
    over = has_course and calls >= 1.5 * (length or 0)
    if calls >= 1.5 * steps and cadence.filled < 0.8:
        fits = length is None or 2 * length < calls or (kind in _ONE_COURSE and near(length, steps))
        if fits and (over or cadence.is_gone):
            known = f", and ends after {(length or 0) / calls:.0%} of the calls" if over else ""
            message = f"{kind} is advanced {cadence.counts}, at each micro-batch{known}."
            # Milestones that the steps pass in the first fifth of the run also count epochs.
            if length is not None and length <= max(epochs, steps / 5 if kind == "MultiStepLR" else 0):
                return _finding(cadence, message, "once an epoch", _after_epoch)
            return _finding(cadence, message, f"only where {cadence.step} is called", _after_step)
    elif over and cadence.is_in_epochs(length or 0):
        message = f"{kind} is {length:g} epochs long but is advanced at each batch, {cadence.counts}."
        return _finding(
            cadence, message, f"once an epoch, or make the schedule {calls} calls long", _after_epoch
        )
    return _soon_over(cadence) if calls >= 0.9 * steps and steps >= 8 else None


def _soon_over(cadence: Cadence) -> Finding | None:
    """Report a learning rate that is near zero for a large part of the run, if each step advances the schedule."""
    kind, length = cadence.made.kind, cadence.made.horizon
    calls, steps = len(cadence.calls), len(cadence.steps)
    milestones = kind == "MultiStepLR" and steps >= 12 and cadence.run.ended == "finished"
    reached = milestones and length and length <= calls / 5
    if reached and cadence.rates[-1] <= 0.1 * max(cadence.made.lr, default=0.0):
        message = (
            f"The last milestone, {length:g}, is reached after {(length or 0) / calls:.0%} of the run: the "
            f"schedule is advanced {cadence.counts}."
        )
        return _finding(cadence, message, "once an epoch, or count the milestones in steps", _after_epoch)
    if not cadence.is_gone:
        return None
    share = f"below a thousandth of its highest value for {cadence.low:.0%} of the steps"
    message = f"{kind} is advanced {cadence.counts}, and the learning rate is {share}."
    return _finding(cadence, message, "once an epoch, or stretch the schedule over all steps", _after_epoch)


def _slow(cadence: Cadence) -> Finding | None:
    """Report a schedule for a whole finished run, or of a single cycle, that is hardly advanced."""
    made, calls, steps, micro = cadence.made, len(cadence.calls), len(cadence.steps), cadence.micro_batches
    length = made.horizon
    if made.kind not in _ONE_COURSE or not length or cadence.run.ended != "finished":
        return None
    if 0.9 * steps <= calls <= 1.1 * steps and micro >= 1.9 * steps and abs(length - micro) <= 1:
        line, divided = length_line(made.site)
        if not divided:  # else this run is a part of a longer run
            each = round(micro / steps)
            return RULE.finding(
                line or made.site,
                f"{made.kind}'s length, {length:g}, is the run's number of micro-batches, but the schedule is "
                f"advanced once per {each} micro-batches: the run ends after {calls / micro:.0%} of the schedule.",
                why=_WHY,
                advice=f"Divide the length by the {each} micro-batches of a window, which gives about {calls}.",
                count=calls,
                evidence={"advanced": calls, "micro_batches": micro, "length": length},
            )
    if made.kind == "OneCycleLR" and 4 * calls <= length and not near(length, steps):
        message = f"{made.kind} is {length:g} steps long, but the run ends after {calls / length:.0%} of it."
        return _finding(
            cadence, message, f"{length:g} times, or make the schedule {calls} calls long", at=made.site
        )
    if 2 * calls > min(length, steps) or not near(length, steps):
        return None
    message = f"{made.kind} is {length:g} steps long, like the run, but is advanced only {calls} times."
    return _finding(cadence, message, f"after each {cadence.step}, in the inner loop", _after_step)


def _still_warming_up(cadence: Cadence) -> Finding | None:
    """Report a warm-up counted in steps but advanced once an epoch, if the run ends before half the warm-up."""
    made, calls, steps = cadence.made, len(cadence.calls), len(cadence.steps)
    length, text = made.horizon or 0.0, whole_text(innermost(made.site).file)
    base = [group.lr or 0.0 for each in cadence.run.made.get(made.optimizer, [])[:1] for group in each.groups]
    if cadence.run.ended != "finished" or not 2 * calls <= length <= steps or not 2 <= calls <= steps / 3:
        return None
    rates = cadence.rates
    if rates != sorted(rates) or rates[0] == rates[-1] or rates[-1] > max(base, default=0.0) / 2:
        return None
    if not _WARMUP_STEPS.search(text) or _WARMUP_EPOCHS.search(text):
        return None  # a short run of a schedule in epochs
    message = (
        f"{made.kind} is {length:g} steps long but is advanced {cadence.counts}: the run ends in its warm-up, at "
        f"{rates[-1] / max(base):.0%} of the learning rate."
    )
    return _finding(cadence, message, "after each optimizer.step(), in the inner loop", _after_step)


def _finding(cadence: Cadence, message: str, where: str, fix: FixAt | None = None, at: Site = ()) -> Finding:
    last, step = (cadence.run.events[numbers[-1]].site for numbers in (cadence.calls, cadence.steps))
    site = at or last
    if innermost(site) == innermost(step):
        site = cadence.made.site  # a library line makes the steps and advances the schedule
    return RULE.finding(
        site,
        message,
        why=_WHY,
        advice=f"Call {cadence.call} {where}.",
        fix=fix or (),
        count=len(cadence.calls),
        evidence={
            "advanced": len(cadence.calls),
            "steps": len(cadence.steps),
            "epochs": cadence.epochs,
            "length": cadence.made.horizon,
        },
    )


# The fix: move the call


def _other_steps(at: Statement) -> list[ast.stmt]:
    return [step for step in at.steps() if method(at.node) == "step" and owner(step) != owner(at.node)]


def _after_later_steps(at: Statement) -> Fix:
    """Move the call after the next statement of its block that steps, or into the ``if`` that contains the step."""
    for node in at.block:
        inner = [step for step in _other_steps(at) if spans(node, step.lineno)]
        if node.lineno > at.line and inner:
            return (Move(at.line, after=(inner[0] if isinstance(node, ast.If) else node).lineno),)
    return ()


def _after_step(at: Statement) -> Fix:
    steps = _other_steps(at)
    return (Move(at.line, after=steps[0].lineno),) if len(steps) == 1 else ()


def _after_epoch(at: Statement) -> Fix:
    """Move the call after the loop over the batches, inside the loop over the epochs."""
    if method(at.node) != "step" or not at.loops:
        return ()
    if len(at.loops) > 1:
        return (Move(at.line, after=at.loops[-2].lineno),)
    name = getattr(at.function, "name", "")
    loops = [*inside(ast.For, at.module), *inside(ast.While, at.module)]
    in_a_loop = any(last_name(call.func) == name for call in inside(ast.Call, *loops))
    return (Move(at.line, after=at.loops[0].lineno),) if in_a_loop else ()


RULE = Rule("GG301", "scheduler-cadence", "warning", __doc__ or "", _judge)
