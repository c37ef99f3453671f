"""Gradients are clipped too late, too early, at each micro-batch, or not at all.

## What it does
Follows which gradients each call of ``clip_grad_norm_`` and ``clip_grad_value_`` clips, and whether a step uses
them afterwards. Reports calls that have no effect while steps use unclipped gradients: calls after the step, before
``backward()``, on another network's parameters, or on an exhausted iterator. Also reports a call at each micro-
batch, between backward calls that add to the same gradient.

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
Clipping by hand isn't seen. Nor are calls that clip one network too late and another one in time. A call that only
measures the norm (a limit of infinity) isn't judged. Neither is a call whose clipped gradients are used without an
optimizer or copied to another network.

## Sources
``torch.nn.utils.clip_grad_norm_`` in the documentation; "Working with Scaled Gradients" in pytorch.org's AMP
examples, which show where to call it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Fix, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import stepping as texts
from gradgate.events import Clipped, Frame

_MEASURING = 0.01  # of the limit: no norm comes near it, so that the call only measures


def _judge(run: Run) -> Iterator[Finding]:
    clipped = grouped((number, part) for part in run.contributions for number in part.clips)
    limiting = [pair for pair in run.numbered(Clipped) if pair[1].site and pair[1].limit is not None]
    for where, numbered in grouped((innermost(pair[1].site), pair) for pair in limiting).items():
        calls = dict(numbered)
        norms = [event.norm / event.limit for event in calls.values() if event.norm and event.limit]
        if not norms or max(norms) >= _MEASURING:
            yield from _useless(run, where, calls, clipped)
        yield from _at_each(run, where, calls)


def _useless(
    run: Run, where: Frame, calls: dict[int, Clipped], clipped: dict[int, list[Contribution]]
) -> Iterator[Finding]:
    """Report a line none of whose calls changes a later step, or most of whose calls get no parameters."""
    useless = [n for n in calls if all(max(part.consumed, default=-1) < n for part in clipped[n])]
    empty = [number for number in useless if not calls[number].given]
    windows = {
        window.step: window for number in useless for window in _unclipped(run, number, clipped[number])
    }
    some = len(useless) < len(calls) and 2 * len(empty) <= len(calls)
    if some or not windows or 2 * len(windows) < len(useless) - 1:
        return
    last, window = calls[useless[-1]], next(iter(windows.values()))
    text = texts.CLIPS_BEFORE
    if empty:
        text = texts.CLIPS_NOTHING
    elif _too_late(useless[-1], clipped[useless[-1]]):
        text = texts.CLIPS_AFTER
    elif not any(last.parameters & run.stepped(step).used for step in windows):
        text = texts.CLIPS_OTHERS
    yield RULE.say(
        where,
        text,
        fix=_before_the_step,
        count=len(useless),
        calls=len(calls),
        empty=len(empty),
        parameters=run.names(last.parameters),
        steps=len(windows),
        optimizer=run.optimizer(window.optimizer),
        limit=last.limit,
    )


def _too_late(number: int, clipped: list[Contribution]) -> set[int]:
    """Return the steps that used the last backward call's gradients before this call clipped them."""
    newest = max((part.backward for part in clipped), default=-1)
    steps = {step for part in clipped if part.backward == newest >= 0 for step in part.consumed}
    return {step for step in steps if step < number}


def _unclipped(run: Run, number: int, clipped: list[Contribution]) -> Iterator[StepWindow]:
    """Yield the windows that a call should have clipped: those it came too late for, and the next one."""
    following = next((window.step for window in run.windows if window.step > number), None)
    meant = {*_too_late(number, clipped), following}
    for window in run.windows:
        # Gradients that were assigned by hand may be the clipped ones of another network.
        computed = any(part.backward >= 0 for part in window.fresh)
        if (
            window.step in meant
            and computed
            and not any(clip < window.step for part in window.fresh for clip in part.clips)
        ):
            yield window


def _at_each(run: Run, where: Frame, calls: dict[int, Clipped]) -> Iterator[Finding]:
    """Report a line that clips between the backward calls of a window, so that it shrinks the sum so far."""
    several = [window for window in run.windows if len(window.micro) > 1]
    windows = [
        (window, within)
        for window in several
        if not run.repeats_closure(window) and (within := _within(run, window) & calls.keys())
    ]
    if not windows or len(windows) * 2 < len(several) - 1:
        return
    window, within = windows[0]
    idle = all(each.norm is not None and each.limit and each.norm <= each.limit for each in calls.values())
    yield RULE.say(
        where,
        texts.CLIPS_AT_EACH,
        severity="warning" if idle else None,
        count=len(windows),
        about=window.parameters,
        times=len(within),
        micro_batches=len(window.micro),
        so_far=", though none has reached the limit so far" if idle else "",
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


# The fix: move the call


def _before_the_step(at: Statement) -> Fix:
    """Move the clip call to the line before the step, if there is one and it follows a backward call."""
    steps, backward = at.steps(), at.beside("backward")
    if not method(at.node).startswith("clip_grad") or len(steps) != 1 or not backward:
        return ()
    between = steps[0] in at.block and steps[0].lineno > backward[-1].lineno
    return (Move(at.line, before=steps[0].lineno),) if between else ()


RULE = Rule("GG302", "clip-misplaced", "error", __doc__ or "", _judge)
