"""Where a zero comes from that takes a gradient away: written, made, rounded, or a unit that never opens."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import (
    called,
    definitions,
    functions,
    key_of,
    own_nodes,
    scope_at,
    scopes_of,
    statements_at,
)
from gradgate.checker.analysis._source import statement_at, text_of, tree_of
from gradgate.events import Frame, Parameter, Site

_KILLERS = frozenset(
    ("relu", "clamp", "round", "sign", "floor", "tanh", "sigmoid", "softmax", "hardtanh", "clip")
)


def written_as_zero(site: Site) -> bool:
    """Say whether a line multiplies by a number that is written as 0, here or where it is defined."""
    statement, scope = statement_at(site[0]), scope_at(site[0])
    if statement is None or scope is None:
        return False
    for node in (statement, *own_nodes(statement)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for side in (node.left, node.right):
                key = key_of(side).lstrip(".")
                if _is_zero(side) or (key and _configured(key, scope.file)):
                    return True
    return False


def _is_zero(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in (0, 0.0) and node.value is not False


def _configured(key: str, file: str) -> bool:
    """Say whether a name is given the number 0 in the file: by assignment, keyword, default or in a dict."""
    for scope in scopes_of(file):
        if any(_is_zero(one.value) for name in (key, "." + key) for one in definitions(scope).get(name, ())):
            return True
        for node in own_nodes(scope.node):
            if isinstance(node, ast.keyword) and node.arg == key and _is_zero(node.value):
                return True
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                if any(isinstance(k, ast.Constant) and k.value == key and _is_zero(v) for k, v in pairs):
                    return True
            if isinstance(node, ast.Call) and any(
                _is_zero(one.value) for one in node.keywords if one.arg == "default"
            ):
                names = [str(getattr(one, "value", "")).lstrip("-").replace("-", "_") for one in node.args]
                if key in names:
                    return True
    return False


def cause_of(several: list[Parameter], site: Site) -> Frame | None:
    """Return where the zero comes from, if that is another line than the one that multiplies by it."""
    return _zero_start(several, site) or _dead_start(site) or _rounded(site)


def _dead_start(site: Site) -> Frame | None:
    """Return where biases are made so low that no ReLU opens."""
    relu = any(
        isinstance(node, ast.Call) and called(node) in ("relu", "relu_", "ReLU")
        for file in {frame.file for frame in site}
        for node in ast.walk(tree_of(file) or ast.Module([], []))
    )
    for file in {frame.file for frame in site} if relu else ():
        for scope in scopes_of(file):
            for node in own_nodes(scope.node):
                if not isinstance(node, ast.Call) or called(node) not in ("constant_", "fill_"):
                    continue
                low = any(isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.USub) for one in node.args)
                if low and "bias" in ast.unparse(node):
                    return Frame(file, node.lineno, "")
    return None


def _rounded(site: Site) -> Frame | None:
    """Return the line that rounds a factor to zero: ``epoch // warm_up``, there or where the factor is computed."""
    statement, scope = statement_at(site[0]), scope_at(site[0])
    if statement is None or scope is None:
        return None
    keys = {
        key_of(side)
        for node in ast.walk(statement)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for side in (node.left, node.right)
    }
    for key in filter(None, keys):
        found = list(definitions(scope).get(key, ()))
        if key.startswith("."):  # a property, or a method
            inside = functions(key[1:], [scope.file])
            found += [one for inner in inside for several in definitions(inner).values() for one in several]
        for one in found:
            if any(isinstance(node, ast.FloorDiv) for node in ast.walk(one.value)):
                return Frame(scope.file, one.value.lineno, site[0].function)
    return None


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
                    zero = called(node).startswith("zero") or any(_is_zero(one) for one in node.args)
                    if zero and "weight" in ast.unparse(node) and "grad" not in ast.unparse(node):
                        return Frame(file, node.lineno, "")
    return None


def _of_zeros(frame: Frame) -> bool:
    text = text_of(frame)
    return "Parameter" in text and ("zeros(" in text or "zeros_like(" in text)
