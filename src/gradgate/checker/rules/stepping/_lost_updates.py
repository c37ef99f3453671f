"""Updates by hand that change no parameter, in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._statement import method

_RESULTS = ("sub", "add", "mul", "div", "addcmul", "addcdiv", "lerp")


def lost_updates(tree: ast.Module | None) -> Iterator[int]:
    """Yield lines that compute an update from a gradient and bind it to a loop's or argument's name, or to none."""
    for scope in ast.walk(tree) if tree is not None else ():
        if isinstance(scope, ast.FunctionDef):
            names = {argument.arg for argument in scope.args.args}
        elif isinstance(scope, ast.For):
            names = {name.id for name in ast.walk(scope.target) if isinstance(name, ast.Name)}
        else:
            continue
        for node in ast.walk(scope):
            if (
                isinstance(node, (ast.Assign, ast.Expr))
                and _of_gradient(node.value)
                and _is_lost(node, names)
            ):
                yield node.lineno


def _is_lost(node: ast.Assign | ast.Expr, names: set[str]) -> bool:
    if isinstance(node, ast.Expr):  # p.sub(lr * p.grad), without the underscore
        return method(node) in _RESULTS
    target = node.targets[0]
    if isinstance(target, ast.Subscript):  # a state_dict is a new one at each call
        return ast.unparse(target.value).endswith(".state_dict()")
    if not isinstance(target, ast.Name) or not isinstance(node.value, ast.BinOp):
        return False
    used = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    return target.id in names & used


def _of_gradient(node: ast.AST) -> bool:
    return any(
        "grad" in name.lower()
        for inner in ast.walk(node)
        for name in [getattr(inner, "attr", None) or getattr(inner, "id", None) or ""]
    )
