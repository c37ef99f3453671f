"""Gradients are clipped too late, too early, at each micro-batch, or not at all.

## What it does
Follows which gradients each call of ``clip_grad_norm_`` and ``clip_grad_value_`` finds, and whether a step uses
them afterwards. Reports calls of which none does while steps go on with gradients that nobody clipped: after the
step, before the backward, on another network's parameters, or on an iterator that is used up. Reports as well a
call that comes at each micro-batch, between two that add to the same gradient.

## Why is this bad?
The step is given gradients of any size, and the limit that stands in the code is not there. Clipping a running sum
at each micro-batch shrinks the early ones again and again, so that they count less than the late ones.

## Example
    params = model.parameters()                              # an iterator
    optimizer = torch.optim.SGD(params, lr=0.1)              # goes through it, once
    for x, y in loader:
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)          # finds nothing
        optimizer.step()
        optimizer.zero_grad()

## Use instead
    params = list(model.parameters())
    ...
        loss_fn(model(x), y).backward()                      # all micro-batches of the window first
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

## Known limits
Clipping that is written by hand is not seen. A call that merely measures (a limit of infinity) is not judged, and
neither is one whose gradients are used by hand, without an optimizer.

## Sources
``torch.nn.utils.clip_grad_norm_`` in the documentation; "Working with Scaled Gradients" in pytorch.org's AMP
examples for where it stands in a loop.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import Contribution, Window
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Move, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import FixAt, Rule
from gradgate.events import Backward, Clipped, Frame

_WHY = "The steps are given gradients of any size: the limit that stands here does not hold for them."


def _judge(run: Run) -> Iterator[Finding]:
    places: dict[Frame, list[int]] = defaultdict(list)
    for number, event in run.numbered(Clipped):
        if event.site and math.isfinite(_clipped(run, number).limit or 0.0):
            places[innermost(event.site)].append(number)
    touched: dict[int, list[Contribution]] = defaultdict(list)
    for contribution in run.contributions:
        for number in contribution.clips:
            touched[number].append(contribution)
    for where, calls in places.items():
        yield from _useless(run, where, calls, touched)
        yield from _each_micro(run, where, set(calls))


def _clipped(run: Run, number: int) -> Clipped:
    event = run.events[number]
    assert isinstance(event, Clipped)  # noqa: S101
    return event


# Clipping that no step has anything of


def _useless(
    run: Run, where: Frame, calls: list[int], touched: dict[int, list[Contribution]]
) -> Iterator[Finding]:
    useless = [
        number
        for number in calls
        if not any(max(one.consumed, default=-1) > number for one in touched[number])
    ]
    empty = [number for number in useless if not _clipped(run, number).given]
    if len(useless) < len(calls) and 2 * len(empty) <= len(calls):
        return
    last = useless[-1]
    late = {number: _too_late(run, number, touched[number]) for number in useless}
    victims = {window.step: window for number in useless for window in _unclipped(run, number, late[number])}
    if not victims or 2 * len(victims) < len(useless) - 1 or _measures(run, calls):
        return
    limit = _clipped(run, last).limit
    names = run.optimizer(next(iter(victims.values())).optimizer)
    steps = f"{len(victims)} steps of {names} use gradients that are not clipped"
    fix: FixAt = _before_the_step
    if empty:
        fix = _as_list
        said = f"Clipping is given no parameters in {len(empty)} of {len(calls)} calls; {steps}."
        advice = "Pass model.parameters() anew, or make a list of it: an iterator can be gone through once."
    elif late[last]:
        said = f"Gradients are clipped after the step that used them; {steps}."
        advice = "Clip between backward() and optimizer.step()."
    elif not any(_clipped(run, last).parameters & run.stepped(step).used for step in victims):
        given = run.names(_clipped(run, last).parameters)
        said = f"Clipping is given {given}, of which no step uses a gradient; {steps}."
        advice = "Clip the parameters that the optimizer steps."
    else:
        said = f"Gradients are clipped before there are any; {steps}."
        advice = "Clip between backward() and optimizer.step()."
    yield RULE.finding(
        where,
        said,
        why=_WHY,
        advice=advice,
        fix=fix,
        count=len(useless),
        evidence={"calls": len(calls), "useless": len(useless), "steps": len(victims), "limit": limit},
    )


def _measures(run: Run, calls: list[int]) -> bool:
    """Say whether a limit is so far off that the call is there to return the norm."""
    events = [_clipped(run, number) for number in calls]
    shares = [event.norm / event.limit for event in events if event.norm and event.limit]
    return bool(shares) and max(shares) < 0.01


def _too_late(run: Run, number: int, touched: list[Contribution]) -> set[int]:
    """Return the steps that used, before a call, what the last backward had added to the gradients it finds."""
    ids = _clipped(run, number).parameters
    before = [n for n, event in run.numbered(Backward) if n < number and event.reached & ids]  # type: ignore[attr-defined]
    newest = [one for one in touched if before and one.backward == before[-1]]
    return {step for one in newest for step in one.consumed if step < number}


def _unclipped(run: Run, number: int, late: set[int]) -> Iterator[Window]:
    """Yield the windows that a call was meant for: those it came too late for, and the next."""
    for window in run.windows:
        if window.step < number and window.step not in late:
            continue
        clipped = any(clip < window.step for one in window.fresh for clip in one.clips)
        if window.fresh and not clipped:
            yield window
        if window.step > number:
            return


# Clipping within a window


def _each_micro(run: Run, where: Frame, calls: set[int]) -> Iterator[Finding]:
    windows: list[tuple[Window, int]] = []
    for window in run.windows:
        within = _within(run, window, calls)
        if within and not run.asks_again(window):
            windows.append((window, len(within)))
    if (
        not windows
        or len(windows) * 2 < len({window.step for window in run.windows if len(window.micro) > 1}) - 1
    ):
        return
    window, often = windows[0]
    norms = [_clipped(run, number) for number in calls]
    reached = [one.norm / one.limit for one in norms if one.norm is not None and one.limit]
    idle = bool(reached) and max(reached) <= 1 and len(reached) == len(norms)
    yield RULE.finding(
        where,
        f"Gradients are clipped {often} times before the last of {len(window.micro)} micro-batches is added"
        + (", though none of them was large enough so far." if idle else "."),
        why="The sum so far is shrunk again and again: early micro-batches count less than late ones.",
        advice="Clip once, after the last micro-batch: in the branch of optimizer.step(), just before it.",
        fix=_into_the_branch,
        severity="warning" if idle else None,
        count=len(windows),
        evidence={"windows": len(windows), "micro_batches": len(window.micro), "clipped_within": often},
    )


def _within(run: Run, window: Window, calls: set[int]) -> set[int]:
    """Return the calls between two backward calls of one line that both add to a gradient of this window."""
    groups: dict[tuple[frozenset[int], Frame], list[Contribution]] = defaultdict(list)
    for one in window.fresh:
        if one.backward >= 0:
            groups[one.atom, innermost(run.events[one.backward].site)].append(one)
    found: set[int] = set()
    for several in groups.values():
        last = max(one.backward for one in several)
        found |= {clip for one in several for clip in one.clips if clip in calls and clip < last}
    return found


# The fix: move the call, or make a list


def _before_the_step(at: Statement) -> Fix:
    """Move the call in front of the only step, where that comes after a backward call."""
    steps, backward = at.steps(), at.beside("backward")
    if not method(at.node).startswith("clip_grad") or len(steps) != 1 or not backward:
        return ()
    between = steps[0] in at.block and steps[0].lineno > backward[-1].lineno
    return (Move(at.line, before=steps[0].lineno),) if between else ()


def _into_the_branch(at: Statement) -> Fix:
    """Move the call in front of the step that is made once a window."""
    branches = [node for node in at.block if node.lineno > at.line and isinstance(node, ast.If)]
    steps = [step for branch in branches for step in at.steps(within=branch)]
    clips = method(at.node).startswith("clip_grad")
    return (Move(at.line, before=steps[0].lineno),) if clips and len(steps) == 1 else ()


def _as_list(at: Statement) -> Fix:
    """Make a list of the iterator where it gets its name."""
    value = at.value
    name = ast.unparse(value.args[0]) if isinstance(value, ast.Call) and value.args else ""
    made = at.assigned_to(name)
    if len(made) != 1:
        return ()
    old = ast.unparse(made[0])
    return (Replace(made[0].lineno, old, f"list({old})"),)


RULE = Rule("GG302", "clip-misplaced", "error", __doc__ or "", _judge)
