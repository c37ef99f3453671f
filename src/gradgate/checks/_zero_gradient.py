"""A parameter's gradient is exactly zero, always.

## What it does
Looks for parameters of an optimizer whose gradient was looked at several times and was all zero each time, and
tells the operation that turned it to zero on its way back: a ReLU below zero, ``round``, a clamp beyond its end, a
saturated ``tanh``, a softmax over one value, a factor of zero.

## Why is this bad?
The parameter is in the graph and in the optimizer, and never learns. Nothing crashes.

## Example
    scores = F.relu(F.log_softmax(logits, dim=1))        # log-probabilities are negative

## Use instead
    scores = F.log_softmax(logits, dim=1)

## Known limits
Three looks at least are taken, so that factors that start at zero (LoRA, ReZero) have moved away. Experts and other
layers of a kind of which some do get a gradient are left alone, and so is a factor that is written as 0.

## Sources
docs/checks.md.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checks._finding import Finding
from gradgate.checks._rule import Rule
from gradgate.checks._run import Run
from gradgate.checks._slices import called, definitions, key_of, own_nodes, scope_at, scopes_of, statements_at
from gradgate.checks._source import statement_at, text_of
from gradgate.events import Frame, Parameter, Site

_LOOKS = 3
_KILLERS = frozenset(
    ("relu", "clamp", "round", "sign", "floor", "tanh", "sigmoid", "softmax", "hardtanh", "clip")
)


def _judge(run: Run) -> Iterator[Finding]:
    groups: dict[Frame, list[Parameter]] = defaultdict(list)
    for one in run.parameters.values():
        if (
            one.id in run.owned
            and one.looks >= _LOOKS
            and one.looks == one.zeros
            and one.zeroed
            and not _sibling(run, one)
        ):
            groups[one.zeroed[0]].append(one)
    for frame, several in groups.items():
        site = several[0].zeroed
        meant = _is_zero(site)
        ids = {one.id for one in several}
        yield RULE.finding(
            _zero_start(several, site) or frame,
            f"The gradient of {run.names(ids)} was all zero in each of {min(one.looks for one in several)} steps: "
            f"line {frame.line} multiplies it by zero.",
            why="It is in the graph and in the optimizer, and never learns.",
            fix="Let a gradient through: start inside the range, drop the rounding or the ReLU on the way to the "
            "loss, or start one of two factors away from zero.",
            severity="info" if meant or run.ended == "stopped" else None,
            count=max(one.looks for one in several),
            evidence={"parameters": len(several), "steps": min(one.looks for one in several)},
            about=ids,
        )


def _sibling(run: Run, one: Parameter) -> bool:
    """Say whether another layer of the same list does get a gradient: an expert that is at work."""
    kind = _numberless(one.name)
    if kind == one.name:
        return False
    return any(
        other.id != one.id
        and other.zeros < other.looks
        and other.shape == one.shape
        and _numberless(other.name) == kind
        for other in run.parameters.values()
    )


def _numberless(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _is_zero(site: Site) -> bool:
    """Say whether a line multiplies by a number that is written as 0, here or where it is defined."""
    statement, scope = statement_at(site[0]), scope_at(site[0])
    if statement is None or scope is None:
        return False
    for node in (statement, *own_nodes(statement)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for side in (node.left, node.right):
                key = key_of(side).lstrip(".")
                if _written_as_zero(side) or (key and _configured(key, scope.file)):
                    return True
    return False


def _written_as_zero(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in (0, 0.0) and node.value is not False


def _configured(key: str, file: str) -> bool:
    """Say whether a name is given the number 0 in the file: by assignment, keyword, default or in a dict."""
    for scope in scopes_of(file):
        if any(
            _written_as_zero(one.value)
            for name in (key, "." + key)
            for one in definitions(scope).get(name, ())
        ):
            return True
        for node in own_nodes(scope.node):
            if isinstance(node, ast.keyword) and node.arg == key and _written_as_zero(node.value):
                return True
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                if any(
                    isinstance(k, ast.Constant) and k.value == key and _written_as_zero(v) for k, v in pairs
                ):
                    return True
            if isinstance(node, ast.Call) and any(
                _written_as_zero(one.value) for one in node.keywords if one.arg == "default"
            ):
                names = [str(getattr(one, "value", "")).lstrip("-").replace("-", "_") for one in node.args]
                if key in names:
                    return True
    return False


def _zero_start(several: list[Parameter], site: Site) -> Frame | None:
    """Return where factors are made of zeros, each of which takes the other's gradient away."""
    made = [one.made[0] for one in several if one.made and _of_zeros(one.made[0])]
    if len(made) > 1 or (made and len(several) == 1):
        return made[0]
    if any(
        isinstance(node, ast.Call) and called(node) in _KILLERS
        for one in statements_at(site[0])
        for node in ast.walk(one)
    ):
        return None
    for file in {frame.file for frame in site}:
        for scope in scopes_of(file):
            for node in own_nodes(scope.node):
                if isinstance(node, ast.Call) and called(node) in ("zeros_", "zero_", "constant_", "fill_"):
                    zero = called(node).startswith("zero") or any(_written_as_zero(one) for one in node.args)
                    if zero and "weight" in ast.unparse(node) and "grad" not in ast.unparse(node):
                        return Frame(file, node.lineno, "")
    return None


def _of_zeros(frame: Frame) -> bool:
    text = text_of(frame)
    return "Parameter" in text and ("zeros(" in text or "zeros_like(" in text)


RULE = Rule("GG403", "zero-gradient", "error", __doc__ or "", _judge)
