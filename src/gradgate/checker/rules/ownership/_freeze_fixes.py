"""Fixes that keep frozen parameters and batch norms as they are."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Delete, Fix, Insert

_MOST_PARTS = 4  # number of modules that a fix lists by name


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


def evaluated(at: Statement, parts: list[str]) -> Fix:
    """Put the untrained parts of a model back into evaluation mode after ``train()``: ["model.backbone"]."""
    root = owner(at.node)
    last = re.escape(root.rpartition(".")[2])
    inner = [re.search(rf"\b{last}([.\[].*)", part) for part in parts]
    if method(at.node) != "train" or not parts or len(parts) > _MOST_PARTS or None in inner:
        return ()
    return tuple(Insert(f"{root}{found[1]}.eval()", after=at.line) for found in inner if found is not None)
