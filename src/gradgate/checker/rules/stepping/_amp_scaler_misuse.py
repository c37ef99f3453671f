"""A gradient scaler is used in the wrong order, for a part of the loss only, or is bypassed.

## What it does
Follows which gradients carry a ``GradScaler``'s scale and when it is divided out. Reports clipping while the scale
is still in, a step that bypasses the scaler, a loss (or one of several, or a summand) that isn't scaled though its
gradient is unscaled, a scaled loss after ``unscale_``, a scaler that is updated between a backward and its step,
and a scaler that is created again for each step.

## Why is this bad?
The scale is a factor of 65536 at first. Clipping gradients that carry it leaves next to nothing once it is divided
out; a loss that wasn't scaled is divided anyway; a step that bypasses the scaler is 65536 times too long.

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
A scaler that is disabled (no GPU) is judged as if it were enabled. Scaling that is written by hand isn't followed,
and a second step that reuses the gradients of a scaler's step isn't reported.

## Sources
https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert, Move, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import FixAt, Rule
from gradgate.events import (
    Clipped,
    Scaled,
    ScalerMade,
    ScalerStepped,
    ScalerUpdated,
    Site,
    Unscaled,
    Written,
)

# The fix: through the scaler


def _scaler(at: Statement) -> str:
    """Return what the only gradient scaler of the file is called, if the statement can use that name."""
    nodes = [node for node in ast.walk(at.module) if isinstance(node, ast.Call)]
    calls = [node.func for node in nodes if isinstance(node.func, ast.Attribute)]
    names = {ast.unparse(call.value) for call in calls if call.attr == "scale"}
    name = names.pop() if len(names) == 1 else ""
    return name if at.knows(name.partition(".")[0]) else ""


def _unscaled(at: Statement) -> Fix:
    """Unscale before clipping."""
    scaler = _scaler(at)
    if not scaler:
        return ()
    unscaling = [node for node in at.beside("unscale_", of=scaler) if node.lineno > at.line]
    if unscaling:
        return (Move(at.line, after=unscaling[0].lineno),)
    steps = [node for node in at.beside("step", of=scaler) if node.lineno > at.line]
    given = steps[0].value.args if len(steps) == 1 else []  # type: ignore[attr-defined]
    return (Insert(f"{scaler}.unscale_({ast.unparse(given[0])})", before=at.line),) if given else ()


def _stepped(at: Statement) -> Fix:
    """Step through the scaler, and update it where nothing does."""
    scaler, value = _scaler(at), at.value
    if not scaler or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return ()
    if value.func.attr != "step":
        return ()
    step = Replace(at.line, ast.unparse(value), f"{scaler}.step({ast.unparse(value.func.value)})")
    updated = any(
        isinstance(node, ast.Attribute) and node.attr == "update" and ast.unparse(node.value) == scaler
        for node in ast.walk(at.module)
    )
    return (step,) if updated else (step, Insert(f"{scaler}.update()", after=at.line))


def _scaled_loss(at: Statement) -> Fix:
    """Scale the loss."""
    scaler, value = _scaler(at), at.value
    if not scaler or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return ()
    loss = ast.unparse(value.func.value)
    return (Replace(at.line, loss, f"{scaler}.scale({loss})"),) if value.func.attr == "backward" else ()


@dataclass(frozen=True)
class _Mistake:
    """A kind of mistake. ``{steps}`` stands for how many steps have it."""

    message: str
    why: str
    advice: str
    fix: FixAt | None = None


_CLIPPED = _Mistake(
    "Gradients are clipped while they carry the gradient scaler's scale, which is divided out later, "
    "in {steps} steps.",
    "The limit applies to gradients that are too large by the scaler's scale, so the clipped ones are that much "
    "too small.",
    "Call scaler.unscale_(optimizer) after backward() and before clipping.",
    _unscaled,
)
_AROUND = _Mistake(
    "{name} is stepped without the gradient scaler: its gradients still carry the scale, in {steps} steps.",
    "They are too large by the scaler's scale, and steps with inf or nan are not skipped.",
    "Write scaler.step({name}), then scaler.update().",
    _stepped,
)
_BARE = _Mistake(
    "This loss isn't scaled, but the gradient scaler divides its gradients by the scale before {steps} steps.",
    "Its gradients are divided by the scaler's scale: almost nothing is left.",
    "Write scaler.scale(loss).backward() here.",
    _scaled_loss,
)
_PART = _Mistake(
    "Only a part of the loss is scaled, and the gradient scaler divides all of it by the scale, in {steps} steps.",
    "The unscaled part is divided by the scaler's scale: almost nothing is left of it.",
    "Add up the parts first, then scale the sum: scaler.scale(total).backward().",
)
_LATE = _Mistake(
    "A scaled loss is back-propagated after unscale_: its gradients still carry the scale in {steps} steps.",
    "Gradients added after unscale_ are too large by the scale.",
    "Call scaler.unscale_ after the last backward() of the window.",
)
_UPDATED = _Mistake(
    "The gradient scaler is updated between a backward and the step that uses it, before {steps} steps.",
    "Whenever the scale changes here, the gradients are divided by another number than they were multiplied by.",
    "Call scaler.update() once, after the last scaler.step() of an iteration.",
)


def _judge(run: Run) -> Iterator[Finding]:
    if not any(isinstance(event, (ScalerMade, ScalerStepped, Scaled)) for event in run.events):
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
            about=set().union(
                *(window.parameters for window in run.windows if window.optimizer == optimizer)
            ),
        )
    yield from _built_anew(run)


def _of_window(run: Run, window: StepWindow) -> Iterator[tuple[Site, _Mistake]]:
    stepped = run.stepped(window.step)
    seen = [part for part in window.fresh if part.backward >= 0 and run.backward(part.backward).seen]
    first = min((part.backward for part in seen), default=window.step)
    unscaled = [
        number
        for number, event in enumerate(run.events[first : window.step], start=first)
        if isinstance(event, Unscaled) and event.optimizer == window.optimizer
    ]
    if stepped.scaler is None and not unscaled:
        if any(run.backward(part.backward).scaler is not None for part in seen):
            yield stepped.site, _AROUND
        return
    # From here on the gradients no longer carry the scale.
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
                scaled = (
                    event.site for event in run.events[part.backward :: -1] if isinstance(event, Scaled)
                )
                yield next(scaled, backward.site), _PART
            yield from _while_scaled(run, part, end)


def _while_scaled(run: Run, part: Contribution, end: int) -> Iterator[tuple[Site, _Mistake]]:
    """Yield what is done to gradients while they carry the scale."""
    for number in part.clips:
        event = run.events[number]
        if number < end and isinstance(event, Clipped) and math.isfinite(event.limit or 0.0):
            yield event.site, _CLIPPED
    for event in run.events[part.backward : end]:
        if isinstance(event, ScalerUpdated) and event.scaler == run.backward(part.backward).scaler:
            yield event.site, _UPDATED
        elif isinstance(event, Written) and event.op.startswith("clamp") and event.target == "gradient":
            yield from [(event.site, _CLIPPED)] if event.parameters & part.atom else []


def _built_anew(run: Run) -> Iterator[Finding]:
    """Report a line that builds a gradient scaler for each step."""
    steps = Counter(event.scaler for event in run.of(ScalerStepped))
    made: dict[Site, list[int]] = {}
    for event in run.of(ScalerMade):
        made.setdefault(event.site, []).append(event.scaler)
    for site, scalers in made.items():
        used = [scaler for scaler in scalers if steps[scaler]]
        if len(used) < 3 or max(steps[scaler] for scaler in used) > 1:
            continue
        skipped = sum(event.skipped and event.scaler in used for event in run.of(ScalerStepped))
        yield RULE.finding(
            site,
            f"{len(used)} gradient scalers are created, one for each step"
            + (f"; {skipped} of the steps are skipped." if skipped else "."),
            why="The scale never adapts: where 65536 is too much, every step finds inf and is skipped.",
            advice="Create the scaler once, before the loop, and call scaler.update() after each scaler.step().",
            count=len(used),
            evidence={"built": len(used), "skipped": skipped},
        )


RULE = Rule("GG303", "amp-scaler-misuse", "error", __doc__ or "", _judge)
