"""A gradient scaler is used in the wrong order, is used for only a part of the loss, or is bypassed.

## What it does
Follows which gradients are multiplied by a ``GradScaler``'s scale, and when they are unscaled. Reports:

- clipping before the gradients are unscaled;
- a step that bypasses the scaler;
- a loss, or a summand of a loss, that isn't scaled although its gradient is unscaled;
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
from typing import TypeGuard

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._queries import windows_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import Statement, owner
from gradgate.checker.fixes import Fix, Insert, Move, Replace
from gradgate.checker.rules._rule import Finding, FixAt, Rule, Text
from gradgate.checker.rules.texts import stepping as texts
from gradgate.events import Clipped, Combined, Event, ScalerUsed, Site, Written

_SCALED_BY_HAND = 64  # a loss with a larger weight
_BUILT = 3  # scalers that one line constructs, with one step each


def _judge(run: Run) -> Iterator[Finding]:
    if not run.of(ScalerUsed):
        return
    found: Counter[tuple[Site, Text, int]] = Counter()
    for window in run.windows:
        for site, text in {*_of_window(run, window)}:
            found[site, text, window.optimizer] += 1
    for (site, text, optimizer), steps in found.items():
        ids = union(window.parameters for window in windows_of(run, optimizer))
        # Where the scaler also steps, a second step of the scaler would be refused.
        scaled = any(event.op == "step" and event.optimizer == optimizer for event in run.of(ScalerUsed))
        name, fix = (
            run.optimizer(optimizer),
            () if scaled and text is texts.AROUND_THE_SCALER else _FIXES.get(text, ()),
        )
        yield RULE.say(site, text, fix=fix, count=steps, about=ids, optimizer=name, steps=steps)
    yield from _built_anew(run)
    yield from _never_used(run)


def _of_window(run: Run, window: StepWindow) -> Iterator[tuple[Site, Text]]:
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
            yield stepped.site, texts.AROUND_THE_SCALER
        return
    end = unscaled[0] if unscaled else window.step  # from here on, the gradients no longer include the scale
    for part in seen:
        backward = run.backward(part.backward)
        if backward.scaler is None:
            if part.backward <= end:
                yield backward.site, texts.NOT_SCALED
        else:
            if len({term.scaled for term in backward.terms if term.kind != "constant"}) == 2:
                earlier = run.events[part.backward :: -1]
                yield (
                    next((event.site for event in earlier if _is(event, "scale")), backward.site),
                    texts.PARTLY_SCALED,
                )
            yield from _while_scaled(run, part, end)


def _is(event: Event, op: str) -> TypeGuard[ScalerUsed]:
    return isinstance(event, ScalerUsed) and event.op == op


def _while_scaled(run: Run, part: Contribution, end: int) -> Iterator[tuple[Site, Text]]:
    """Yield clipping of gradients that still include the scale."""
    for event in run.events[part.backward : end]:
        clips = isinstance(event, Clipped) and event.limit is not None
        clamps = isinstance(event, Written) and event.op.startswith("clamp") and event.target == "gradient"
        if (clips or clamps) and event.parameters & part.atom:  # type: ignore[attr-defined]
            yield event.site, texts.CLIPPED_SCALED


def _built_anew(run: Run) -> Iterator[Finding]:
    """Report a line that builds a gradient scaler for each step."""
    stepped = [event for event in run.of(ScalerUsed) if event.op == "step"]
    steps = Counter(event.scaler for event in stepped)
    made = grouped((event.site, event.scaler) for event in run.of(ScalerUsed) if event.op == "made")
    for site, scalers in made.items():
        used = [scaler for scaler in scalers if steps[scaler]]
        if len(used) >= _BUILT and max(steps[scaler] for scaler in used) == 1:
            skipped = sum(event.skipped and event.scaler in used for event in stepped)
            yield RULE.say(site, texts.SCALERS_BUILT, count=len(used), built=len(used), skipped=skipped)


def _never_used(run: Run) -> Iterator[Finding]:
    """Report losses of float16 layers that no gradient scaler scales, although the script constructs one."""
    if any(event.op != "made" for event in run.of(ScalerUsed)):
        return
    half = {event.backward for event in run.of(Combined) if event.how == "float16"}
    losses = (event for event in run.calls_reaching(run.owned) if event.site in half)
    for site, events in grouped((event.site, event) for event in losses).items():
        if all(term.weight < _SCALED_BY_HAND for event in events for term in event.terms):
            ids = union(event.reached for event in events)
            yield RULE.say(site, texts.NEVER_SCALED, count=len(events), about=ids, losses=len(events))


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
            updated = f"{scaler}.update" in map(ast.unparse, inside(ast.Attribute, at.module))
            return (step,) if updated else (step, Insert(f"{scaler}.update()", after=at.line))
    return ()


_FIXES: dict[Text, FixAt] = {
    texts.CLIPPED_SCALED: _unscaled,
    texts.AROUND_THE_SCALER: _through_the_scaler,
}

RULE = Rule("GG303", "amp-scaler-misuse", "error", __doc__ or "", _judge)
