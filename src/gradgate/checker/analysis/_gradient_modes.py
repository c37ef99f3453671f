"""Reads where the source turns gradients off or on, and for which parameters."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._scopes import (
    argument,
    called,
    is_function,
    last_name,
)
from gradgate.checker.analysis._source import path_to
from gradgate.events import Frame


def contexts_of(node: ast.AST) -> list[ast.expr]:
    """Return the contexts that a ``with`` statement enters, or the decorators of a function."""
    items = node.items if isinstance(node, (ast.With, ast.AsyncWith)) else []
    return [*(item.context_expr for item in items), *getattr(node, "decorator_list", [])]


def without_gradients(node: ast.AST) -> int | None:
    """Return the line on which a node turns gradients off: ``with torch.no_grad()``, or a decorator."""
    for each in contexts_of(node):
        name = last_name(each.func if isinstance(each, ast.Call) else each)
        off = isinstance(each, ast.Call) and each.args and getattr(each.args[0], "value", None) is False
        if name in ("no_grad", "inference_mode") or (name == "set_grad_enabled" and off):
            return each.lineno
    return None


def requires_grad(node: ast.AST) -> ast.expr | None:
    """Return the value to which a call or an assignment sets ``requires_grad``."""
    if isinstance(node, ast.Call) and called(node) == "requires_grad_":
        return argument(node, 0, "requires_grad") or ast.Constant(True)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    named = isinstance(target, ast.Attribute) and target.attr == "requires_grad"
    return node.value if isinstance(node, ast.Assign) and named else None


def no_grad_around(frame: Frame) -> Frame | None:
    """Return the line of the same function that turns gradients off for a running line."""
    for node in reversed(path_to(frame.file, frame.line)):
        line = without_gradients(node)
        if line is not None:
            return Frame(frame.file, line, frame.function)
        if is_function(node):
            return None
    return None
