"""A loss compares every prediction of the batch with every target.

## What it does
Looks for an operation between values of shape (N, 1) and (N,) whose result of shape (N, N) is averaged or summed in
the loss. Also looks for an advantage of shape (N, N) that was computed without a graph and is multiplied by N
log-probabilities.

## Why is this bad?
The loss compares each prediction with the targets of all samples, so it is smallest if every prediction is the mean
of all targets. The loss falls to the variance of the targets and stays there. If the (N, N) value is an advantage,
each log-probability is multiplied by a mean over the baselines of all samples.

## Example
    loss = ((model(x) - y) ** 2).mean()               # model(x) is (N, 1), y is (N,)

## Use instead
    loss = ((model(x).squeeze(1) - y) ** 2).mean()

## Known limits
A function that adds or swaps dimensions explicitly (``y[None]``, ``y.unsqueeze(0)``, ``x.T``) is assumed to compare
all pairs on purpose. For a value without a graph, this also holds for a function that reshapes an operand
(``y.view(-1, 1)``) or subtracts a vector from itself.

## Sources
docs.pytorch.org/docs/stable/notes/broadcasting.html; the warning of ``torch.nn.functional.mse_loss``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import (
    called,
    definitions,
    key_of,
    no_grad_around,
    own_nodes,
    scope_at,
    statements_at,
)
from gradgate.checker.analysis._slices import Slice, files_of
from gradgate.checker.analysis._source import statement_at
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Combined, Frame

_PAIRS = re.compile(
    r"None|unsqueeze|\.m?T\b|\.t\(|transpose|permute|newaxis|expand|repeat|meshgrid|outer|cdist|einsum|triu|tril|eye"
)
_SHAPING = {"view", "reshape", "unsqueeze", "transpose", "permute", "expand", "repeat", "t", "outer", "diag"}


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[Frame, Combined] = {}
    for event in run.of(Combined):
        if event.how not in ("broadcast", "weighed by pairs") or not event.site:
            continue
        if not event.parameters & run.owned:
            continue
        line: Frame | None = innermost(event.site)
        if event.how == "weighed by pairs":
            line = _difference_behind(run, innermost(event.site))
        elif line is not None and _wants_pairs(line):
            line = None
        if line is not None:
            found.setdefault(line, event)
    for frame, event in found.items():
        size = event.sizes[0]
        weighs = event.how == "weighed by pairs"
        yield RULE.finding(
            frame,
            f"Shapes [{size}, 1] and [{size}] are broadcast here: the result has the shape "
            f"[{size}, {size}], "
            + (
                f"and line {innermost(event.site).line} multiplies {size} log-probabilities by it."
                if weighs
                else f"and the loss compares all {size} samples with each other."
            ),
            why="Each log-probability is weighted by the mean over all samples' baselines, so its sample "
            "has no effect."
            if weighs
            else "Each prediction is trained towards the targets of all samples: the model learns their mean.",
            advice="Give both the same shape: call squeeze(1) on the value of shape (N, 1).",
            count=sum(each.site == event.backward for each in run.of(Backward)),
            evidence={"shape": list(event.sizes)},
            about=event.parameters,
        )


def _difference_behind(run: Run, product: Frame) -> Frame | None:
    """Return the line that computed, without a graph, a difference which is a factor of this product.

    Returns the product's own line if several differences are possible. Returns None if there is no difference, or
    if one of them compares all pairs on purpose.
    """
    scope = scope_at(product)
    if scope is None:
        return None
    files = files_of({(product,), *(event.site for event in run.of(Backward))})
    factors = [
        (scope, side)
        for statement in statements_at(product)
        for node in ast.walk(statement)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for side in (node.left, node.right)
    ]
    lines: set[Frame] = set()
    for file, node in Slice(factors, files).nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        frame = Frame(file, node.lineno, "")
        inner, sides = scope_at(frame), (node.left, node.right)
        names = [{key_of(each) for each in ast.walk(side)} - {""} for side in sides]
        if inner is None or not all(names) or names[0] & names[1] or not _is_without_graph(frame):
            continue
        made = [each.value for name in set().union(*names) for each in definitions(inner).get(name, ())]
        if any(map(_is_shaped, (*sides, *made))):
            return None
        lines.add(frame)
    return None if not lines else lines.pop() if len(lines) == 1 else product


def _is_shaped(value: ast.AST) -> bool:
    """Return whether the last operations of an expression change its shape explicitly."""
    if isinstance(value, ast.BinOp):
        return _is_shaped(value.left) or _is_shaped(value.right)
    if isinstance(value, ast.Call):
        keeps = any(each.arg == "keepdim" for each in value.keywords)
        return keeps or called(value) in _SHAPING or (called(value) != "squeeze" and _is_shaped(value.func))
    if isinstance(value, ast.Subscript):
        none = any(isinstance(node, ast.Constant) and node.value is None for node in ast.walk(value.slice))
        return none or "newaxis" in ast.unparse(value.slice) or _is_shaped(value.value)
    return isinstance(value, ast.Attribute) and (value.attr in ("T", "mT") or _is_shaped(value.value))


def _is_without_graph(frame: Frame) -> bool:
    """Return whether the source computes a difference under ``no_grad``, or detaches its result or an operand."""
    statement = statement_at(frame)
    text = ast.unparse(statement) if statement is not None else ""
    return no_grad_around(frame) is not None or bool(re.search(r"\.detach\(\)|\.data\b", text))


def _wants_pairs(frame: Frame) -> bool:
    """Return whether the function around a line compares all pairs on purpose, or can't be read."""
    scope = scope_at(frame)
    if scope is None:
        return True
    statements = (
        node for node in own_nodes(scope.node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.Return))
    )
    return any(_PAIRS.search(ast.unparse(node)) for node in statements if node.value is not None)


RULE = Rule("GG107", "unintended-broadcast", "error", __doc__ or "", _judge)
