"""Fixes that keep frozen parameters and batch norms as they are."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Delete, Fix, Insert

_MOST_NORMS = 4  # number of batch norms that a fix lists by name


def requires_grad(node: ast.AST) -> ast.expr | None:
    """Return the value that a call or an assignment gives ``requires_grad``."""
    if isinstance(node, ast.Call) and called(node) == "requires_grad_":
        return node.args[0] if node.args else None
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    named = isinstance(target, ast.Attribute) and target.attr == "requires_grad"
    return node.value if isinstance(node, ast.Assign) and named else None


def without_gradients(at: Statement, names: set[str]) -> Fix:
    """Set the gradients of frozen parameters to None, so that steps no longer move them."""
    value = next(filter(None, map(requires_grad, at.expressions())), None)
    if value is None or getattr(value, "value", None) is not False:
        return ()
    if isinstance(at.node, ast.Assign) and isinstance(at.node.targets[0], ast.Attribute):
        frozen = ast.unparse(at.node.targets[0].value)
    elif method(at.node) == "requires_grad_":
        frozen = owner(at.node)
    else:
        return ()
    item = any(isinstance(loop, ast.For) and ast.unparse(loop.target) == frozen for loop in at.loops[:1])
    own = f".{frozen.removeprefix('self.')}"
    if item or any(f".{name}".endswith(own) for name in names):
        return (Insert(f"{frozen}.grad = None", after=at.line),)
    # With another name it may be a module or a parameter, and a parameter has no zero_grad.
    module = any(f"{own}." in f".{name}" for name in names)
    return (Insert(f"{frozen}.zero_grad()", after=at.line),) if module else ()


def none_instead(at: Statement) -> Fix:
    """Set a gradient to None instead of zero."""
    target = owner(at.node)
    if method(at.node) != "zero_" or not target.endswith(".grad"):
        return ()
    return Insert(f"{target} = None", after=at.line), Delete(at.line)


def evaluated(at: Statement, names: list[str]) -> Fix:
    """Put frozen batch norms back into evaluation mode after ``train()``.

    Each batch norm is named: the module that holds it may also hold batch norms that are trained.
    """
    root = owner(at.node)
    last = root.rpartition(".")[2]
    paths = [name.split(".") for name in names]
    if method(at.node) != "train" or len(names) > _MOST_NORMS or any(last not in path[:-1] for path in paths):
        return ()
    inner = [path[path.index(last) + 1 :] for path in paths]
    parts = ["".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path) for path in inner]
    return tuple(Insert(f"{root}{part}.eval()", after=at.line) for part in parts)
