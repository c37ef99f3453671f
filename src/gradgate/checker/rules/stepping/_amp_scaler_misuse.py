"""A gradient scaler is used in the wrong order, is used for only a part of the loss, or is bypassed.

## What it does
Follows which gradients are multiplied by a ``GradScaler``'s scale, and when they are unscaled. Reports:

- clipping before the gradients are unscaled;
- a step that bypasses the scaler;
- a loss, or a summand of a loss, that isn't scaled although its gradient is unscaled;
- a scaled loss after ``unscale_``;
- a scaler that is updated between a backward pass and its step;
- a scaler that is constructed again for each step;
- a scaler that is constructed and never used, if layers compute in float16.

## Why is this bad?
The scale is initially 65536. If scaled gradients are clipped, almost nothing is left after they are unscaled. The
gradient of a loss that isn't scaled is still divided by the scale. A step that bypasses the scaler is 65536 times
too long.

## Example
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # 65536 times too large here
    scaler.step(optimizer)
    scaler.update()

## Use instead
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()

## Known limits
A disabled scaler (no GPU) is judged as if it were enabled. Scaling by hand isn't followed. A second step that
reuses the gradients of a scaler's step isn't reported.

## Sources
https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._queries import windows_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Delete, Fix, Insert, Move, Replace
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.events import Backward, Clipped, Combined, Event, ScalerUsed, Site, Written

_SCALED_BY_HAND = 64  # a loss with a larger weight

# The fix: use the scaler


def _scaler(at: Statement) -> str:
    """Return the name of the file's only gradient scaler, if the statement can use this name."""
    calls = [call.func for call in inside(ast.Call, at.module) if called(call) == "scale"]
    names = {ast.unparse(function.value) for function in calls if isinstance(function, ast.Attribute)}
    name = names.pop() if len(names) == 1 else ""
    return name if at.knows(name.partition(".")[0]) else ""


def _unscaled(at: Statement) -> Fix:
    """Unscale before clipping."""
    scaler = _scaler(at)
    unscaling = [node for node in at.later("unscale_") if owner(node) == scaler]
    if scaler and unscaling:
        return (Move(at.line, after=unscaling[0].lineno),)
    match [node for node in at.later("step") if owner(node) == scaler]:
        case [ast.Expr(ast.Call(_, [optimizer, *_]))] if scaler:
            return (Insert(f"{scaler}.unscale_({ast.unparse(optimizer)})", before=at.line),)
    return ()


def _through_the_scaler(at: Statement) -> Fix:
    """Step through the scaler, and update it unless another line does."""
    scaler = _scaler(at)
    match at.value:
        case ast.Call(ast.Attribute(optimizer, "step")) as call if scaler:
            step = Replace(at.line, ast.unparse(call), f"{scaler}.step({ast.unparse(optimizer)})")
            names = [ast.unparse(node) for node in inside(ast.Attribute, at.module)]
            updated = f"{scaler}.update" in names
            return (step,) if updated else (step, Insert(f"{scaler}.update()", after=at.line))
    return ()


def _scaled_loss(at: Statement) -> Fix:
    """Scale the loss."""
    scaler = _scaler(at)
    match at.value:
        case ast.Call(ast.Attribute(loss, "backward")) if scaler:
            return (Replace(at.line, ast.unparse(loss), f"{scaler}.scale({ast.unparse(loss)})"),)
    return ()


@dataclass(frozen=True)
class _Mistake:
    """A kind of mistake. ``{steps}`` is the number of steps that it affects."""

    message: str
    why: str
    advice: str
    fix: FixAt | None = None


_CLIPPED = _Mistake(
    "Gradients are clipped before the gradient scaler unscales them, in {steps} steps.",
    "The limit applies to gradients that still include the scaler's scale, so the clipped gradients are too small "
    "by this factor.",
    "Call scaler.unscale_(optimizer) after backward() and before clipping.",
    _unscaled,
)
_AROUND = _Mistake(
    "{name} is stepped without the gradient scaler: its gradients still include the scale, in {steps} steps.",
    "The gradients are multiplied by the scaler's scale, and steps with inf or nan are not skipped.",
    "Write scaler.step({name}), then scaler.update().",
    _through_the_scaler,
)
_TWICE = _Mistake(
    "{name} steps here without the gradient scaler, with gradients that still include the scale, and again in "
    "scaler.step({name}): {steps} times.",
    "The gradients of the first step are multiplied by the scaler's scale.",
    "Remove this line.",
    lambda at: (Delete(at.line),) if method(at.node) == "step" else (),
)
_BARE = _Mistake(
    "This loss isn't scaled, but the gradient scaler divides its gradients by the scale before {steps} steps.",
    "The gradients are divided by the scaler's scale: almost nothing is left.",
    "Write scaler.scale(loss).backward() here.",
    _scaled_loss,
)
_PART = _Mistake(
    "Only a part of the loss is scaled, but the gradient scaler divides all gradients by the scale, in {steps} "
    "steps.",
    "The unscaled part is divided by the scaler's scale: almost none of its gradient is left.",
    "Add the parts first, then scale the sum: scaler.scale(total).backward().",
)
_LATE = _Mistake(
    "A scaled loss is back-propagated after unscale_: its gradients still include the scale in {steps} steps.",
    "Gradients added after unscale_ are still multiplied by the scale.",
    "Call scaler.unscale_ after the last backward() of the window.",
)
_UPDATED = _Mistake(
    "The gradient scaler is updated between a backward pass and the step that uses it, before {steps} steps.",
    "If the scale changes here, the gradients are multiplied by one scale and divided by another.",
    "Call scaler.update() once, after the last scaler.step() of an iteration.",
)


def _judge(run: Run) -> Iterator[Finding]:
    if not run.of(ScalerUsed):
        return
    found: Counter[tuple[Site, _Mistake, int]] = Counter()
    for window in run.windows:
        for site, mistake in {*_of_window(run, window)}:
            found[site, mistake, window.optimizer] += 1
    for (site, mistake, optimizer), steps in found.items():
        name = run.optimizer(optimizer)
        yield RULE.finding(
            site,
            mistake.message.format(name=name, steps=steps),
            why=mistake.why,
            advice=mistake.advice.format(name=name),
            fix=mistake.fix or (),
            count=steps,
            evidence={"steps": steps},
            about=union(window.parameters for window in windows_of(run, optimizer)),
        )
    yield from _built_anew(run)
    yield from _never_used(run)


def _of_window(run: Run, window: StepWindow) -> Iterator[tuple[Site, _Mistake]]:
    stepped = run.stepped(window.step)
    seen = [part for part in window.fresh if part.backward >= 0 and run.backward(part.backward).seen]
    first = min((part.backward for part in seen), default=window.step)
    unscaled = [
        number
        for number, event in enumerate(run.events[first : window.step], start=first)
        if _is(event, "unscale") and event.optimizer == window.optimizer
    ]
    if stepped.scaler is None and not unscaled:
        if any(run.backward(part.backward).scaler is not None for part in seen):
            yield stepped.site, _TWICE if _steps_again(run, window) else _AROUND
        return
    # From here on the gradients no longer include the scale.
    end = unscaled[0] if unscaled else window.step
    for part in seen:
        backward = run.backward(part.backward)
        if backward.scaler is None:
            if part.backward <= end:
                yield backward.site, _BARE
        elif part.backward > end:
            yield run.events[end].site, _LATE
        else:
            if len({term.scaled for term in backward.terms if term.kind != "constant"}) == 2:
                earlier = run.events[part.backward :: -1]
                scaled = (event.site for event in earlier if _is(event, "scale"))
                yield next(scaled, backward.site), _PART
            yield from _while_scaled(run, part, end)


def _steps_again(run: Run, window: StepWindow) -> bool:
    """Return whether a gradient scaler also makes a step of the same window."""
    later = (each for each in run.events[window.step :] if isinstance(each, Backward) or _is(each, "step"))
    following = next(later, None)
    return isinstance(following, ScalerUsed) and following.optimizer == window.optimizer


def _is(event: Event, op: str) -> TypeGuard[ScalerUsed]:
    return isinstance(event, ScalerUsed) and event.op == op


def _while_scaled(run: Run, part: Contribution, end: int) -> Iterator[tuple[Site, _Mistake]]:
    """Yield operations on gradients that still include the scale."""
    for number in part.clips:
        event = run.events[number]
        if number < end and isinstance(event, Clipped) and event.limit is not None:
            yield event.site, _CLIPPED
    for event in run.events[part.backward : end]:
        if _is(event, "update") and event.scaler == run.backward(part.backward).scaler:
            yield event.site, _UPDATED
        elif isinstance(event, Written) and event.op.startswith("clamp") and event.target == "gradient":
            yield from [(event.site, _CLIPPED)] if event.parameters & part.atom else []


def _built_anew(run: Run) -> Iterator[Finding]:
    """Report a line that builds a gradient scaler for each step."""
    stepped = [event for event in run.of(ScalerUsed) if event.op == "step"]
    steps = Counter(event.scaler for event in stepped)
    made = grouped((event.site, event.scaler) for event in run.of(ScalerUsed) if event.op == "made")
    for site, scalers in made.items():
        used = [scaler for scaler in scalers if steps[scaler]]
        if len(used) < 3 or max(steps[scaler] for scaler in used) > 1:
            continue
        skipped = sum(event.skipped and event.scaler in used for event in stepped)
        yield RULE.finding(
            site,
            f"{len(used)} gradient scalers are constructed, one for each step"
            + (f"; {skipped} of the steps are skipped." if skipped else "."),
            why="The scale never adapts: if 65536 is too large, every step has inf and is skipped.",
            advice="Construct the scaler once, before the loop, and call scaler.update() after each scaler.step().",
            count=len(used),
            evidence={"built": len(used), "skipped": skipped},
        )


def _never_used(run: Run) -> Iterator[Finding]:
    """Report losses of float16 layers that no gradient scaler scales, although the script constructs one."""
    if any(event.op != "made" for event in run.of(ScalerUsed)):
        return
    made = run.of(ScalerUsed)[0].site
    half = {event.backward for event in run.of(Combined) if event.how == "float16"}
    losses = (event for event in run.calls_reaching(run.owned) if event.site in half)
    for site, events in grouped((event.site, event) for event in losses).items():
        if any(term.weight >= _SCALED_BY_HAND for event in events for term in event.terms):
            continue
        line = f" in line {made[0].line}" if made else ""
        yield RULE.finding(
            site,
            f"A gradient scaler is constructed{line} and never used: this loss isn't scaled, although layers "
            "compute in float16.",
            why="Gradients below 6e-8 are zero in float16, and those below 6e-5 lose digits.",
            advice="Write scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update(). Or use "
            "bfloat16, which needs no scaler.",
            count=len(events),
            evidence={"losses": len(events)},
            about=union(event.reached for event in events),
        )


RULE = Rule("GG303", "amp-scaler-misuse", "error", __doc__ or "", _judge)
