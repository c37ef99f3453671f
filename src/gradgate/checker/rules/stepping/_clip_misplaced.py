"""Gradients are clipped too late, too early, at each micro-batch, or not at all.

## What it does
Follows which gradients each call of ``clip_grad_norm_`` and ``clip_grad_value_`` clips, and whether a step uses
them afterwards. Reports calls that have no effect while steps use unclipped gradients: calls after the step, before
``backward()``, on another network's parameters, or on an exhausted iterator. Also reports a call at each
micro-batch, between backward calls that add to the same gradient.

## Why is this bad?
The step uses gradients of any size, and the limit has no effect. Clipping a running sum at each micro-batch shrinks
the early gradients again and again, so early micro-batches count less than late ones.

## Example
    params = model.parameters()                              # an iterator
    optimizer = torch.optim.SGD(params, lr=0.1)              # exhausts it
    for x, y in loader:
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)          # clips nothing
        optimizer.step()
        optimizer.zero_grad()

## Use instead
    params = list(model.parameters())
    ...
        loss_fn(model(x), y).backward()                      # all micro-batches of the window first
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

## Known limits
Clipping by hand isn't seen. A call that only measures the norm (a limit of infinity) isn't judged. Neither is a
call whose clipped gradients are used without an optimizer or copied to another network.

## Sources
``torch.nn.utils.clip_grad_norm_`` in the documentation; "Working with Scaled Gradients" in pytorch.org's AMP
examples, which show where to call it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Move, Replace
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.events import Clipped, Frame, Ids, Written

_LEAST = 3  # calls
_WHY = "The steps use gradients of any size: the limit set here doesn't apply to them."


def _judge(run: Run) -> Iterator[Finding]:
    clipped = grouped((number, part) for part in run.contributions for number in part.clips)
    limiting = [pair for pair in run.numbered(Clipped) if pair[1].site and pair[1].limit is not None]
    for where, numbered in grouped((innermost(pair[1].site), pair) for pair in limiting).items():
        calls = dict(numbered)
        yield from list(_useless(run, where, calls, clipped)) or _of_another(run, where, calls, clipped)
        yield from _at_each(run, where, calls)


# Calls that have no effect on a step


def _useless(
    run: Run, where: Frame, calls: dict[int, Clipped], clipped: dict[int, list[Contribution]]
) -> Iterator[Finding]:
    useless = [
        number for number in calls if all(max(part.consumed, default=-1) < number for part in clipped[number])
    ]
    empty = [number for number in useless if not calls[number].given]
    if len(useless) < len(calls) and 2 * len(empty) <= len(calls):
        return
    late = {number: _too_late(number, clipped[number]) for number in useless}
    unclipped = {
        window.step: window for number in useless for window in _unclipped(run, number, late[number])
    }
    if _measures(calls) or not unclipped or 2 * len(unclipped) < len(useless) - 1:
        return
    last = calls[useless[-1]]
    name = run.optimizer(next(iter(unclipped.values())).optimizer)
    fix: FixAt = _before_the_step
    advice = "Clip between backward() and optimizer.step()."
    if empty:
        what = f"clip_grad gets no parameters in {len(empty)} of {len(calls)} calls"
        advice = "Pass model.parameters() again, or store list(model.parameters()): "
        advice += "an iterator can be used only once."
        fix = _as_list
    elif late[useless[-1]]:
        what = "Gradients are clipped after the step that used them"
    elif not any(last.parameters & run.stepped(step).used for step in unclipped):
        what = f"The gradients of {run.names(last.parameters)} are clipped, but no step uses them"
        advice = "Clip the parameters that the optimizer updates."
    else:
        what = "Gradients are clipped before backward() computes them"
    yield RULE.finding(
        where,
        f"{what}; {len(unclipped)} steps of {name} use unclipped gradients.",
        why=_WHY,
        advice=advice,
        fix=fix,
        count=len(useless),
        evidence={
            "calls": len(calls),
            "useless": len(useless),
            "steps": len(unclipped),
            "limit": last.limit,
        },
    )


def _measures(calls: dict[int, Clipped]) -> bool:
    """Return whether the limit is so high that the calls only measure the norm."""
    reached = [event.norm / event.limit for event in calls.values() if event.norm and event.limit]
    return bool(reached) and max(reached) < 0.01


def _of_another(
    run: Run, where: Frame, calls: dict[int, Clipped], clipped: dict[int, list[Contribution]]
) -> Iterator[Finding]:
    """Report calls that clip gradients of an earlier step, and only some of the next step's gradients."""
    dead: Ids = frozenset()
    missed: dict[int, Ids] = {}
    for number in calls:
        window = next((window for window in run.windows if window.step > number), None)
        if window is None:
            continue
        shared = {part.backward for part in window.fresh if number in part.clips}
        rest = [part.atom for part in window.fresh if not part.clips and part.backward in shared]
        old = [part.atom for part in clipped[number] if 0 <= max(part.consumed, default=-1) < number]
        if rest and old:
            dead |= union(old)
            missed[window.step] = union(rest)
    if len(missed) < _LEAST or len(missed) < 0.9 * len(calls) or _measures(calls):
        return
    step, ids = next(iter(missed.items()))
    yield RULE.finding(
        where,
        f"Gradients of {run.names(dead)} are clipped after the step that used them; {len(missed)} steps of "
        f"{run.optimizer(run.stepped(step).optimizer)} use unclipped gradients of {run.names(ids)}.",
        why=_WHY,
        advice="Clip the parameters that the optimizer updates.",
        count=len(missed),
        evidence={"calls": len(calls), "steps": len(missed)},
        about=ids,
    )


def _too_late(number: int, clipped: list[Contribution]) -> set[int]:
    """Return the steps that used the last backward call's gradients before this call clipped them."""
    newest = max((part.backward for part in clipped), default=-1)
    steps = {step for part in clipped if part.backward == newest >= 0 for step in part.consumed}
    return {step for step in steps if step < number}


def _unclipped(run: Run, number: int, late: set[int]) -> Iterator[StepWindow]:
    """Yield the windows that a call should have clipped: windows that it came too late for, and the next window."""
    following = next((window.step for window in run.windows if window.step > number), None)
    for window in run.windows:
        clips = [clip for part in window.fresh for clip in part.clips if clip < window.step]
        meant = window.step in {*late, following} and window.fresh and not clips
        if meant and not _handed_over(run, number, window):
            yield window


def _handed_over(run: Run, number: int, window: StepWindow) -> bool:
    """Return whether a step's gradients were assigned by hand after a call that clips other parameters.

    The assigned gradients may be the clipped ones: A3C clips a worker's gradients, then copies them to the shared
    network.
    """
    ids, call = window.parameters, run.events[number]
    if any(part.backward >= 0 for part in window.fresh) or (
        isinstance(call, Clipped) and call.parameters & ids
    ):
        return False
    return any(
        isinstance(event, Written) and event.target == "gradient" and event.parameters & ids
        for event in run.events[number : window.step]
    )


# Calls within a window


def _at_each(run: Run, where: Frame, calls: dict[int, Clipped]) -> Iterator[Finding]:
    several = [window for window in run.windows if len(window.micro) > 1]
    windows = [
        (window, within)
        for window in several
        if not run.repeats_closure(window) and (within := _within(run, window) & calls.keys())
    ]
    if not windows or len(windows) * 2 < len(several) - 1:
        return
    window, within = windows[0]
    times = "once" if len(within) == 1 else f"{len(within)} times"
    idle = all(each.norm is not None and each.limit and each.norm <= each.limit for each in calls.values())
    yield RULE.finding(
        where,
        f"Gradients are clipped {times} before the last of {len(window.micro)} micro-batches is added"
        + (", though none has reached the limit so far." if idle else "."),
        why="Each call shrinks the sum so far, so early micro-batches count less than late ones.",
        advice="Clip once, after the last micro-batch, just before optimizer.step().",
        fix=_into_the_branch,
        severity="warning" if idle else None,
        count=len(windows),
        evidence={
            "windows": len(windows),
            "micro_batches": len(window.micro),
            "clipped_within": len(within),
        },
        about=window.parameters,
    )


def _within(run: Run, window: StepWindow) -> set[int]:
    """Return the clipping calls between two backward calls of one line that add to the same gradient."""
    computed = (part for part in window.fresh if part.backward >= 0)
    groups = grouped(((part.atom, innermost(run.events[part.backward].site)), part) for part in computed)
    return {
        clip
        for parts in groups.values()
        for part in parts
        for clip in part.clips
        if clip < max(other.backward for other in parts)
    }


# The fix: move the call, or store a list


def _before_the_step(at: Statement) -> Fix:
    """Move the clip call to the line before the step, if there is one step and it comes after a backward call."""
    steps, backward = at.steps(), at.beside("backward")
    if not method(at.node).startswith("clip_grad") or len(steps) != 1 or not backward:
        return ()
    between = steps[0] in at.block and steps[0].lineno > backward[-1].lineno
    return (Move(at.line, before=steps[0].lineno),) if between else ()


def _into_the_branch(at: Statement) -> Fix:
    """Move the clip call into the branch that steps once per window, to the line before the step."""
    branches = [node for node in at.block if node.lineno > at.line and isinstance(node, ast.If)]
    steps = [step for branch in branches for step in at.steps(within=branch)]
    clips = method(at.node).startswith("clip_grad")
    return (Move(at.line, before=steps[0].lineno),) if clips and len(steps) == 1 else ()


def _as_list(at: Statement) -> Fix:
    """Turn the iterator into a list where it is assigned."""
    match at.value:
        case ast.Call(_, [given, *_]):
            made = at.assigned_to(ast.unparse(given))
            if len(made) == 1:
                return (Replace(made[0].lineno, ast.unparse(made[0]), f"list({ast.unparse(made[0])})"),)
    return ()


RULE = Rule("GG302", "clip-misplaced", "error", __doc__ or "", _judge)
