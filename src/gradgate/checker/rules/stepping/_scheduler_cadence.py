"""A learning-rate scheduler is advanced too often, too rarely, too early, or never.

## What it does
Compares how often a scheduler is advanced with its optimizer's steps, the passes over the data, and its length
(``T_max``, ``total_steps``, the last milestone, a number in a ``LambdaLR``'s function). Reports a scheduler that is
never advanced, drives a replaced optimizer, is advanced before the first step, or runs several times too fast (a
length in epochs advanced at each batch) or too slowly (a length in steps advanced once an epoch).

## Why is this bad?
The rate stays at its warm-up value, or decays to zero in a fraction of the run. The loss falls, but more slowly.

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
schedule is long. A run that is stopped early is not reported. If no DataLoader shows the epochs, a length counts
epochs if an outer loop has the same length: ``T_max=epochs`` and ``for epoch in range(epochs)``. Otherwise only a
rate near zero for a large part of the run is reported. The rule doesn't follow schedules written by hand,
schedulers constructed again in each epoch, or a ``LambdaLR`` without a known length.

## Sources
https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._origins import length_line
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import loops_around, statement_at, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import FixAt, Rule
from gradgate.checker.rules.stepping._cadence import (
    GONE,
    Cadence,
    cadences,
    is_in_epochs,
    low,
    micro_batches,
    near,
    rates,
    unit,
)
from gradgate.checker.rules.stepping._discarded_optimizer import of_discarded_optimizers
from gradgate.events import Scheduled, SchedulerMade, Site, Stepped

_WHY = "The learning rate doesn't follow the schedule for most of the run."
_ONE_COURSE = ("CosineAnnealingLR", "OneCycleLR", "PolynomialLR", "LambdaLR", "SequentialLR")
_DECAYS = ("StepLR", "MultiStepLR", "ExponentialLR", "MultiplicativeLR")


def _judge(run: Run) -> Iterator[Finding]:
    yield from of_discarded_optimizers(run, RULE)
    for optimizer, several in cadences(run).items():
        if len(several[0].steps) < 2:
            continue
        advanced = [cadence for cadence in several if cadence.calls]
        if not advanced:
            if not any(cadence.by_others for cadence in several):
                yield from _never(run, optimizer, several[-1])
            continue
        for cadence in advanced:
            finding = _early(run, cadence) or _fast(run, cadence) or _slow(run, cadence)
            if finding is not None:
                yield finding


def _never(run: Run, optimizer: int, cadence: Cadence) -> Iterator[Finding]:
    if run.ended != "finished" or _would_be_advanced(run, cadence.made):
        return
    rate = max(cadence.made.lr, default=0.0)
    yield RULE.finding(
        cadence.made.site,
        f"{cadence.made.kind} is never advanced: {run.optimizer(optimizer)} makes all {len(cadence.steps)} steps "
        f"at the first learning rate, {rate:g}.",
        why=_WHY,
        advice=f"Call scheduler.step() {unit(cadence)}.",
        evidence={"steps": len(cadence.steps), "advanced": 0},
    )


def _would_be_advanced(run: Run, made: SchedulerMade) -> bool:
    """Return whether a line that didn't run calls ``step`` on an object with the scheduler's name."""
    statement = statement_at(innermost(made.site))
    names = {last_name(target) for target in getattr(statement, "targets", ())}
    files = {frame.file for event in run.of(SchedulerMade, Stepped) for frame in event.site}
    for node in (node for file in files for node in ast.walk(tree_of(file) or ast.Module([], []))):
        if isinstance(node, ast.Attribute) and node.attr == "step":
            name = last_name(node.value)
            if name in names or "sched" in name.lower():
                return True
    return False


def _early(run: Run, cadence: Cadence) -> Finding | None:
    """Report a scheduler that is advanced before its optimizer's first step, in the loop that makes the steps."""
    first = run.events[cadence.calls[0]]
    if cadence.calls[0] > cadence.steps[0] or cadence.filled() < 0.99 or not isinstance(first, Scheduled):
        return None
    loops = [loop for frame in first.site for loop in loops_around(frame)]
    if not any(loop in loops for frame in run.events[cadence.steps[0]].site for loop in loops_around(frame)):
        return None
    before, after = max(cadence.made.lr, default=0.0), max(first.lr, default=0.0)
    if before == 0 or abs(after - before) < 0.01 * before:
        return None
    return RULE.finding(
        first.site,
        f"The schedule is advanced before the first step: the first learning rate, {before:g}, is never used, and "
        f"training begins at {after:g}.",
        why="Each step uses the learning rate meant for the next step.",
        advice="Call scheduler.step() after optimizer.step(), or at the end of the epoch.",
        fix=_after_later_steps,
        count=len(cadence.calls),
        evidence={"first": before, "used": after},
    )


def _fast(run: Run, cadence: Cadence) -> Finding | None:
    made, calls, steps, epochs = cadence.made, len(cadence.calls), len(cadence.steps), cadence.epochs
    kind, length = made.kind, made.horizon
    if made.periodic or calls < 2:
        return None
    if kind == "ReduceLROnPlateau":
        if length is None or epochs < 2 or length >= steps / epochs or calls < 0.9 * steps:
            return None
        message = f"The patience of {length:g} counts batches, advanced {cadence.counts} in {epochs} epochs."
        return _finding(run, cadence, message, "after each epoch, with the validation loss", _after_epoch)
    found = rates(run, cadence)
    falls = kind == "LinearLR" and bool(found) and found[-1] < found[0]
    has_course = length is not None and (kind in (*_ONE_COURSE, "MultiStepLR") or falls)
    if calls >= 1.5 * steps and cadence.filled() < 0.8:
        over = has_course and calls >= 1.5 * (length or 0)
        fits = length is None or 2 * length < calls or (kind in _ONE_COURSE and near(length, steps))
        if fits and (over or _is_gone(run, cadence)):
            known = f", and ends after {(length or 0) / calls:.0%} of the calls" if over else ""
            message = f"{kind} is advanced {cadence.counts}, at each micro-batch{known}."
            # Milestones that the steps pass in the first fifth of the run also count epochs.
            if length is not None and length <= max(epochs, steps / 5 if kind == "MultiStepLR" else 0):
                return _finding(run, cadence, message, "once an epoch", _after_epoch)
            return _finding(run, cadence, message, "only where optimizer.step() is", _after_step)
    elif has_course and calls >= 1.5 * (length or 0) and is_in_epochs(run, cadence, length or 0):
        message = f"{kind} is {length:g} epochs long but is advanced at each batch, {cadence.counts}."
        return _finding(run, cadence, message, f"once an epoch, or make it {calls} long", _after_epoch)
    return _soon_over(run, cadence)


def _soon_over(run: Run, cadence: Cadence) -> Finding | None:
    """Report a learning rate that is near zero for a large part of the run, if each step advances the schedule."""
    kind, length = cadence.made.kind, cadence.made.horizon
    calls, steps = len(cadence.calls), len(cadence.steps)
    if calls < 0.9 * steps or steps < 8:
        return None
    milestones = kind == "MultiStepLR" and steps >= 12 and run.ended == "finished"
    found = rates(run, cadence)
    if milestones and length and length <= calls / 5 and found[-1] <= 0.1 * max(cadence.made.lr, default=0.0):
        message = (
            f"The last milestone, {length:g}, is reached after {length / calls:.0%} of the run: the schedule is "
            f"advanced {cadence.counts}."
        )
        return _finding(
            run, cadence, message, "once an epoch, or count the milestones in steps", _after_epoch
        )
    if not _is_gone(run, cadence):
        return None
    share = f"below a thousandth of its highest value for {low(run, cadence):.0%} of the steps"
    message = f"{kind} is advanced {cadence.counts}, and the learning rate is {share}."
    return _finding(
        run, cadence, message, "once an epoch, or stretch the schedule over all steps", _after_epoch
    )


def _is_gone(run: Run, cadence: Cadence) -> bool:
    """Return whether the learning rate is near zero for many steps, or after the last step of a per-batch decay."""
    found = rates(run, cadence)
    if not found or max(found) == 0:
        return False
    each_batch = len(cadence.calls) >= 2 * cadence.epochs >= 4 and cadence.made.kind in _DECAYS
    return low(run, cadence) >= 0.4 or (each_batch and found[-1] < GONE * max(found))


def _slow(run: Run, cadence: Cadence) -> Finding | None:
    """Report a schedule that is as long as a finished run or is a single cycle, but is hardly advanced."""
    made, calls, steps = cadence.made, len(cadence.calls), len(cadence.steps)
    length = made.horizon
    if made.kind not in _ONE_COURSE or not length or run.ended != "finished":
        return None
    micro = micro_batches(run, cadence)
    if 0.9 * steps <= calls <= 1.1 * steps and micro >= 1.9 * steps and abs(length - micro) <= 1:
        finding = _in_micro_batches(run, cadence, micro)
        if finding is not None:
            return finding
    if made.kind == "OneCycleLR" and 4 * calls <= length and not near(length, steps):
        message = f"{made.kind} is {length:g} steps long, but the run ends after {calls / length:.0%} of it."
        return _finding(run, cadence, message, f"{length:g} times, or make it {calls} long", at=made.site)
    if 2 * calls > min(length, steps) or not near(length, steps):
        return None
    message = f"{made.kind} is {length:g} steps long, like the run, but is advanced only {calls} times."
    return _finding(run, cadence, message, "after each optimizer.step(), in the inner loop", _after_step)


def _in_micro_batches(run: Run, cadence: Cadence, micro: int) -> Finding | None:
    """Report a schedule whose length counts micro-batches but that is advanced once a window, unless divided."""
    line, divided = length_line(cadence.made.site)
    if divided:
        return None  # this run is a part of a longer run
    made, calls = cadence.made, len(cadence.calls)
    each = round(micro / len(cadence.steps))
    return RULE.finding(
        line or made.site,
        f"{made.kind} is {made.horizon:g} long, like the run in micro-batches, but is advanced once per {each} "
        f"micro-batches: the run ends after {calls / micro:.0%} of the schedule.",
        why=_WHY,
        advice=f"Divide the length by the {each} micro-batches of a window, which gives about {calls}.",
        count=calls,
        evidence={"advanced": calls, "micro_batches": micro, "length": made.horizon},
    )


def _finding(
    run: Run, cadence: Cadence, message: str, where: str, fix: FixAt | None = None, at: Site = ()
) -> Finding:
    site = at or run.events[cadence.calls[-1]].site
    if innermost(site) == innermost(run.events[cadence.steps[-1]].site):
        site = cadence.made.site  # a library line makes the steps and advances the schedule
    calls, steps = len(cadence.calls), len(cadence.steps)
    return RULE.finding(
        site,
        message,
        why=_WHY,
        advice=f"Call scheduler.step() {where}.",
        fix=fix or (),
        count=calls,
        evidence={
            "advanced": calls,
            "steps": steps,
            "epochs": cadence.epochs,
            "length": cadence.made.horizon,
        },
    )


# The fix: move the call


def _other_steps(at: Statement) -> list[ast.stmt]:
    if method(at.node) != "step":
        return []
    return [step for step in at.steps() if owner(step) != owner(at.node)]


def _after_later_steps(at: Statement) -> Fix:
    """Move the call after the next statement of its block that steps, or into the ``if`` that contains the step."""
    for node in at.block:
        inner = [step for step in _other_steps(at) if any(step is each for each in ast.walk(node))]
        if node.lineno > at.line and inner:
            place = inner[0] if isinstance(node, ast.If) else node
            return (Move(at.line, after=place.lineno),)
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
    loops = [node for node in ast.walk(at.module) if isinstance(node, (ast.For, ast.While))]
    calls = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    in_a_loop = any(last_name(call.func) == name for call in calls)
    return (Move(at.line, after=at.loops[0].lineno),) if in_a_loop else ()


RULE = Rule("GG301", "scheduler-cadence", "warning", __doc__ or "", _judge)
