"""A gradient becomes inf or NaN, and a step uses it.

## What it does
Follows gradients back through the graph to the first operation that received a finite gradient and returned a
non-finite one: the square root of 0, the logarithm of 0, or a division by 0. If the loss itself is NaN, the rule
names the first operation whose result was NaN. Only gradients that an optimizer's step used are reported. If a
gradient scaler skips the step, nothing is reported.

## Why is this bad?
One NaN in a gradient makes the parameter NaN and, after the next step, all other parameters. ``torch.where``
doesn't help: the gradient of the branch that is not selected is 0 times infinity, which is NaN.

## Example
    plogp = torch.where(p > 0, p * p.log(), 0.0)      # its gradient is NaN where p is 0

## Use instead
    plogp = torch.where(p > 0, p * p.clamp(min=1e-9).log(), 0.0)

## Known limits
Divergence is not reported. A run has diverged if its loss grew a millionfold before the step.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html; github.com/pytorch/pytorch/issues/68425.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, names_read, own_nodes, scope_at
from gradgate.checker.analysis._source import statement_at
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, NonfiniteMade, Stepped

_RISKY = frozenset(
    ("std", "var", "log", "sqrt", "rsqrt", "norm", "div", "normalize", "pow", "exp", "acos", "asin")
)
_NO_TENSORS = ("math", "np", "numpy", "self")
_GROWN = 1e6
_INSIDE = "-1 + 1e-6, 1 - 1e-6"  # the derivative of acos is infinite at -1 and 1
_AWAY_FROM_ZERO = (
    "Keep divisors and the arguments of roots and logarithms away from 0: clamp(min=1e-8), or + eps "
    "under the root."
)
_WITHIN = f"Keep the argument within (-1, 1), where the derivative is finite: clamp({_INSIDE})."
_ADVICE = {
    **dict.fromkeys(("Acos", "Asin", "Atanh", "Erfinv"), _WITHIN),
    "Log": "Keep the argument of the logarithm away from 0: clamp(min=1e-8). For a softmax or sigmoid, use "
    "log_softmax or logsigmoid of the logits: a clamped probability has no gradient.",
    "Acosh": "Keep the argument above 1, where the derivative is infinite: clamp(min=1 + 1e-6).",
    "Exp": "Limit the argument with clamp(max=...), or use a stable form: softmax, logsumexp, softplus.",
    "Std": "A standard deviation has an infinite derivative if all values are equal, and is NaN for a single "
    "value: use (x.var(unbiased=False) + eps).sqrt().",
}


def _judge(run: Run) -> Iterator[Finding]:
    used = [number for number, event in run.numbered(Stepped) if event.nonfinite]
    if not used or _diverged(run, used[0]):
        return
    stepped = run.stepped(used[0])
    made = [
        event
        for event in run.events[: used[0]]
        if isinstance(event, NonfiniteMade) and event.site and event.parameters & stepped.nonfinite
    ]
    if not made:
        return
    first = next((event for event in made if event.loss), made[0])
    name = first.node.rstrip("0123456789").removesuffix("Backward")
    yield RULE.finding(
        _origin(first),
        f"{'The loss is' if first.loss else 'The gradient becomes'} NaN or infinite here ({name}), and "
        f"{run.optimizer(stepped.optimizer)} updated {run.names(stepped.nonfinite)} with it, first in step "
        f"{sum(number <= used[0] for number, _ in run.numbered(Stepped))}.",
        why="After this step the parameters are NaN, and so is every value computed from them.",
        advice=_ADVICE.get(name, _AWAY_FROM_ZERO),
        fix=_clamped if name in ("Sqrt", "Log", "Mul", "Acos", "Asin") else (),
        count=len(used),
        evidence={"operation": first.node, "parameters": len(stepped.nonfinite), "steps": len(used)},
        about=stepped.nonfinite,
    )


def _diverged(run: Run, step: int) -> bool:
    """Return whether the losses had diverged before a step."""
    values = [
        abs(event.value)
        for event in run.events[:step]
        if isinstance(event, Backward) and event.value is not None and math.isfinite(event.value)
    ]
    return bool(values) and max(values) > _GROWN * (abs(values[0]) + 1e-6)


def _origin(event: NonfiniteMade) -> Frame:
    """Return the line that produced NaN, or the last risky line that computed the input of that operation."""
    frame = event.site[0]
    statement, scope = statement_at(frame), scope_at(frame)
    if statement is None or scope is None or _is_risky(statement):
        return frame
    lines = [
        definition.value.lineno
        for name in names_read(statement)
        for definition in definitions(scope).get(name, ())
        if definition.value.lineno < frame.line and _is_risky(definition.value)
    ]
    return Frame(frame.file, max(lines), frame.function) if lines else frame


def _is_risky(root: ast.AST) -> bool:
    nodes = (root, *own_nodes(root))
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) for node in nodes) or any(
        isinstance(node, ast.Call) and called(node) in _RISKY for node in nodes
    )


def _clamped(at: Statement) -> Fix:
    """Clamp the argument if the statement has exactly one square root, logarithm, arc cosine or arc sine."""
    calls = [call for name in ("sqrt", "log", "acos", "arccos", "asin", "arcsin") for call in at.calls(name)]
    function = calls[0].func if len(calls) == 1 else None
    if not isinstance(function, ast.Attribute) or len(calls[0].args) > 1 or calls[0].keywords:
        return ()
    taken = calls[0].args[0] if calls[0].args else function.value
    made = [taken, *at.assigned_to(ast.unparse(taken))]
    if any("softmax" in ast.unparse(each) or "sigmoid" in ast.unparse(each) for each in made):
        return ()  # a clamped probability has no gradient: log_softmax and logsigmoid have one
    name, of = ast.unparse(function), ast.unparse(function.value)
    clamp = "clamp(min=1e-8)" if function.attr in ("sqrt", "log") else f"clamp({_INSIDE})"
    if calls[0].args:
        new = f"{name}({operand(calls[0].args[0])}.{clamp})" if of == "torch" else ""
    else:
        new = f"{operand(function.value)}.{clamp}.{function.attr}()" if of not in _NO_TENSORS else ""
    return (Replace(at.line, ast.unparse(calls[0]), new),) if new else ()


RULE = Rule("GG404", "nonfinite-gradient", "error", __doc__ or "", _judge)
