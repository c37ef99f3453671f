"""A gradient becomes inf or NaN, and a step uses it.

## What it does
Follows gradients back through the graph and tells the first operation that was given a finite gradient and returned
another: the root of 0, the logarithm of 0, a division by 0. Where the loss itself is NaN, it tells the first
operation that made it so. Only what an optimizer's step used is reported; a gradient scaler that skips the step is
right.

## Why is this bad?
One NaN in a gradient makes the parameter NaN, and with it everything from the next step on. ``torch.where`` does
not help: the gradient of the side that is not taken is 0 times infinity, which is NaN.

## Example
    plogp = torch.where(p > 0, p * p.log(), 0.0)      # NaN on the way back where p is 0

## Use instead
    plogp = torch.where(p > 0, p * p.clamp(min=1e-9).log(), 0.0)

## Known limits
A training that diverges, so that its loss had grown a million times before, is not reported.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html; github.com/pytorch/pytorch/issues/68425.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, own_nodes, scope_at
from gradgate.checker.analysis._source import statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, NonfiniteMade, Stepped

_RISKY = {"std", "var", "log", "sqrt", "rsqrt", "norm", "div", "mean", "normalize", "pow", "exp"}
_GROWN = 1e6


def _judge(run: Run) -> Iterator[Finding]:
    used = [
        (number, event)
        for number, event in run.numbered(Stepped)
        if isinstance(event, Stepped) and event.nonfinite
    ]
    if not used:
        return
    step, stepped = used[0]
    made = [
        event
        for event in run.events[:step]
        if isinstance(event, NonfiniteMade) and event.site and event.parameters & stepped.nonfinite
    ]
    if not made or _diverged(run, step):
        return
    first = next((event for event in made if event.loss), made[0])
    frame = _origin(first)
    name = first.node.rstrip("0123456789").removesuffix("Backward")
    yield RULE.finding(
        frame,
        f"{'The loss is' if first.loss else 'The gradient becomes'} NaN or infinite here ({name}), and "
        f"{run.optimizer(stepped.optimizer)} stepped {run.names(stepped.nonfinite)} with it, first in step "
        f"{sum(1 for number, _ in run.numbered(Stepped) if number <= step)}.",
        why="The parameters are NaN from then on, and so is all that is computed from them.",
        advice="Keep what is divided by, or what a root or logarithm is taken of, away from 0 before the "
        "operation: clamp(min=1e-8), or + eps under the root.",
        count=len(used),
        evidence={"operation": first.node, "parameters": len(stepped.nonfinite), "steps": len(used)},
        about=stepped.nonfinite,
    )


def _diverged(run: Run, step: int) -> bool:
    """Say whether the losses had grown without bounds before."""
    values = [
        abs(event.value)
        for event in run.events[:step]
        if isinstance(event, Backward) and event.value is not None and math.isfinite(event.value)
    ]
    return bool(values) and max(values) > _GROWN * (abs(values[0]) + 1e-6)


def _origin(event: NonfiniteMade) -> Frame:
    """Return the line that made NaN: of a number that only came in, the last risky line that computed it."""
    frame = event.site[0]
    statement, scope = statement_at(frame), scope_at(frame)
    if statement is None or scope is None or _is_risky(statement):
        return frame
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    lines = [
        one.value.lineno
        for name in names
        for one in definitions(scope).get(name, ())
        if one.value.lineno < frame.line and _is_risky(one.value)
    ]
    return Frame(frame.file, max(lines), frame.function) if lines else frame


def _is_risky(root: ast.AST) -> bool:
    for node in (root, *own_nodes(root)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return True
        if isinstance(node, ast.Call) and called(node) in _RISKY - {"mean"}:
            return True
    return False


RULE = Rule("GG404", "nonfinite-gradient", "error", __doc__ or "", _judge)
