"""Reads where the source turns gradients off or on, and for which parameters."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    argument,
    called,
    is_function,
    last_name,
    own_calls,
    own_nodes,
)
from gradgate.checker.analysis._source import function_at, path_to, spans, tree_of
from gradgate.events import Backward, Frame, Site, Stepped

_OF_MODELS = ("parameters", "named_parameters", "state_dict")
_RUNS = re.compile(r"loss|eval|accura|score|error|predict|forward", re.IGNORECASE)


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


def evaluates(run: Run, frame: Frame) -> bool:
    """Return whether a line is in a function that runs a model without gradients and never trains."""
    function = function_at(frame)
    training = {(each.file, each.function) for event in run.of(Backward, Stepped) for each in event.site}
    if function is None or not is_function(function) or (frame.file, frame.function) in training:
        return False
    calls = own_calls(function)
    here = [call for call in calls if spans(call, frame.line)]
    functions = (call.func for call in calls if called(call) in _OF_MODELS)
    read = [each.value for each in functions if isinstance(each, ast.Attribute)]
    models = {ast.unparse(given) for given in (*read, *(given for call in here for given in call.args))}
    off = any(without_gradients(node) is not None for node in (function, *own_nodes(function)))
    return off and any(_runs(call, models) for call in calls if call not in here)


def _runs(call: ast.Call, models: set[str]) -> bool:
    """Return whether a call runs one of the models, or passes a model to a loss or metric."""
    given = any(ast.unparse(each) in models for each in call.args)
    return ast.unparse(call.func) in models or (given and bool(_RUNS.search(called(call))))


def readable(site: Site) -> bool:
    """Return whether the source of all lines of a site can be read."""
    return all(tree_of(frame.file) is not None for frame in site)
