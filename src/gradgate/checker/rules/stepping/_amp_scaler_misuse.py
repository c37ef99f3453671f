"""A gradient scaler is used in the wrong order, for a part of the loss only, or is passed by.

## What it does
Follows which gradients carry a ``GradScaler``'s scale and when it is divided out. Reports clipping while the scale
is still in, a step that goes around the scaler, a loss (or one of several, or a summand) that is not scaled though
its gradient is unscaled, a scaled loss after ``unscale_``, a scaler that is updated between a backward and its
step, and one that is built anew for each step.

## Why is this bad?
The scale is a factor of 65536 at first. Clipping gradients that carry it leaves next to nothing once it is divided
out; what was not scaled is divided all the same; what is stepped around the scaler is as many times too large.

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
A scaler that is switched off (no GPU) is judged as if it were on. Scaling that is written by hand is not followed.

## Sources
https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._history import Contribution, Window
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
    Stepped,
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
    """A kind of mistake, in words. ``{steps}`` stands for how many steps have it."""

    message: str
    why: str
    advice: str
    fix: FixAt | None = None


_CLIPPED = _Mistake(
    "Gradients are clipped while they carry the gradient scaler's scale, which is divided out later, "
    "in {steps} steps.",
    "The limit holds for gradients that are 65536 times too large at first: what is left is as much too small.",
    "Call scaler.unscale_(optimizer) after backward() and before clipping.",
    _unscaled,
)
_AROUND = _Mistake(
    "{name} is stepped around the gradient scaler: its gradients still carry the scale, in {steps} steps.",
    "They are as many times too large as the scale says, 65536 at first, and inf and nan are not held back.",
    "Write scaler.step({name}), then scaler.update().",
    _stepped,
)
_AGAIN = _Mistake(
    "{name} is stepped by the gradient scaler and once more by itself, with the same gradients, {steps} times.",
    "Each gradient is used twice, also where the scaler found inf or nan in it and skipped the step.",
    "Leave the second step out: scaler.step({name}) steps it.",
)
_BARE = _Mistake(
    "This loss is not scaled, but the gradient scaler divides its gradients by the scale before {steps} steps.",
    "Its gradients are divided by 65536 at first: they are as good as gone.",
    "Write scaler.scale(loss).backward() here.",
    _scaled_loss,
)
_PART = _Mistake(
    "Only a part of the loss is scaled, and the gradient scaler divides all of it by the scale, in {steps} steps.",
    "The part that is not scaled counts 1/65536 of what it should.",
    "Add the parts up first, then scale the sum: scaler.scale(total).backward().",
)
_LATE = _Mistake(
    "A scaled loss is back-propagated after unscale_: its gradients still carry the scale in {steps} steps.",
    "What comes after unscale_ is as many times too large as the scale says.",
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
            about=set().union(*(one.parameters for one in run.windows if one.optimizer == optimizer)),
        )
    yield from _built_anew(run)


def _of_window(run: Run, window: Window) -> Iterator[tuple[Site, _Mistake]]:
    stepped = run.stepped(window.step)
    seen = [one for one in window.fresh if one.backward >= 0 and run.backward(one.backward).seen]
    first = min((one.backward for one in seen), default=window.step)
    unscaled = [n for n in range(first, window.step) if _is_unscaled(run, n, window.optimizer)]
    if stepped.scaler is None and not unscaled:
        if any(_scaled(run, one) for one in seen):
            yield stepped.site, _AROUND
        elif not window.fresh and _just_stepped(run, window):
            yield stepped.site, _AGAIN
        return
    # From here on the gradients no longer carry the scale.
    end = unscaled[0] if unscaled else window.step
    for one in seen:
        backward = run.backward(one.backward)
        if one.backward > end:
            if _scaled(run, one):
                yield run.events[end].site, _LATE
            continue
        if not _scaled(run, one):
            yield backward.site, _BARE
            continue
        parts = {term.scaled for term in backward.terms if term.kind != "constant"}
        if len(parts) == 2:
            yield _last_scaling(run, one.backward), _PART
        yield from _between(run, one, end)


def _is_unscaled(run: Run, number: int, optimizer: int) -> bool:
    event = run.events[number]
    return isinstance(event, Unscaled) and event.optimizer == optimizer


def _scaled(run: Run, one: Contribution) -> bool:
    return run.backward(one.backward).scaler is not None


def _just_stepped(run: Run, window: Window) -> bool:
    """Say whether the gradients of a step were used just before by a step of the gradient scaler's."""
    for number in range(window.step - 1, -1, -1):
        event = run.events[number]
        if isinstance(event, ScalerStepped) and event.optimizer == window.optimizer:
            return bool(window.stale) and not event.skipped
        if isinstance(event, Stepped) or type(event).__name__ in ("Backward", "Cleared"):
            return False
    return False


def _last_scaling(run: Run, backward: int) -> Site:
    for number in range(backward, -1, -1):
        event = run.events[number]
        if isinstance(event, Scaled):
            return event.site
    return run.events[backward].site


def _between(run: Run, one: Contribution, end: int) -> Iterator[tuple[Site, _Mistake]]:
    """Yield what is done to gradients while they carry the scale."""
    scaler = run.backward(one.backward).scaler
    for number in one.clips:
        event = run.events[number]
        if number < end and isinstance(event, Clipped) and math.isfinite(event.limit or 0.0):
            yield event.site, _CLIPPED
    for number in range(one.backward, end):
        event = run.events[number]
        if isinstance(event, ScalerUpdated) and event.scaler == scaler:
            yield event.site, _UPDATED
        elif isinstance(event, Written) and _clamps(event) and event.parameters & one.atom:
            yield event.site, _CLIPPED


def _clamps(event: Written) -> bool:
    return event.target == "gradient" and event.op.startswith("clamp")


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
            f"{len(used)} gradient scalers are built, one for each step"
            + (f"; {skipped} of the steps are skipped." if skipped else "."),
            why="The scale never adapts: where 65536 is too much, every step finds inf and is skipped.",
            advice="Build the scaler once, before the loop, and call scaler.update() after each scaler.step().",
            count=len(used),
            evidence={"built": len(used), "skipped": skipped},
        )


RULE = Rule("GG303", "amp-scaler-misuse", "error", __doc__ or "", _judge)
