"""Fixes that keep a value attached to its graph, or detach it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checker.analysis._scopes import (
    called,
    is_function,
)
from gradgate.checker.analysis._statement import Statement, method, operand, owner
from gradgate.checker.fixes import Delete, Fix, Insert, Replace

_NEW_TENSORS = frozenset(("tensor", "as_tensor", "asarray", "array", "Tensor", "FloatTensor", "DoubleTensor"))
_TO_NUMBERS = frozenset(("numpy", "tolist", "argmax", "argmin", "long", "int", "round", "float"))


def without_cut(at: Statement, ops: tuple[str, ...]) -> Fix:
    """Remove the operation in ``ops`` that detaches a value from its graph.

    A ``no_grad`` stays, because some of the values under it may have no graph on purpose.
    """
    if is_function(at.node) or isinstance(at.node, ast.With):
        return ()
    numbers = method(at.node) == "append" or any(called(call) in _NEW_TENSORS for call in at.calls())
    if "item" in ops and numbers:
        return ()  # a tensor of the numbers has no graph either
    expressions = (node for node in at.expressions() if isinstance(node, ast.expr))
    cuts = [node for node in expressions if _cut_value(node, ops) is not None]
    if len(cuts) != 1 or _becomes_number(at, cuts[0]):
        return ()
    value = _cut_value(cuts[0], ops)
    assert value is not None  # noqa: S101
    targets = at.node.targets if isinstance(at.node, ast.Assign) and at.value is cuts[0] else []
    if [ast.unparse(target) for target in targets] == [ast.unparse(value)]:
        return (Delete(at.line),)  # x = x.detach()
    attribute, *outer = at.around(cuts[0]) or [at.node]
    leaf = isinstance(attribute, ast.Attribute) and attribute.attr == "requires_grad_"  # of x.detach()
    return _replaced(at, outer[0] if leaf else cuts[0], operand(value))


def _cut_value(node: ast.expr, ops: tuple[str, ...]) -> ast.expr | None:
    """Return the ``x`` of ``x.detach()``, ``x.item()`` or ``x.data``."""
    function = node.func if isinstance(node, ast.Call) and not node.args else None
    if isinstance(function, ast.Attribute) and function.attr in {"detach", "item"}.intersection(ops):
        return function.value
    data = isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Load)
    return node.value if isinstance(node, ast.Attribute) and data and "data" in ops else None


def _becomes_number(at: Statement, cut: ast.expr) -> bool:
    """Return whether the value also loses its graph in another way: as an array, a number or an index."""
    if any(isinstance(node, ast.Attribute) and node.attr in _TO_NUMBERS for node in at.expressions()):
        return True
    calls = [ast.unparse(node.func) for node in at.around(cut) if isinstance(node, ast.Call)]
    return any(re.match(r"(math|np|numpy)\.|(float|int|round|print)$", name) for name in calls)


def _replaced(at: Statement, node: ast.AST, new: str) -> Fix:
    """Replace an expression, as part of the smallest enclosing expression that occurs only once."""
    inner = ast.unparse(node)
    texts = [ast.unparse(each) for each in at.expressions() if isinstance(each, ast.expr)]
    for outer in (node, *at.around(node)):
        text = ast.unparse(outer)
        if text.count(inner) == 1 and texts.count(text) == 1:
            return (Replace(at.line, text, text.replace(inner, new)),)
    return ()


def with_graph(at: Statement) -> Fix:
    """Keep the graph of a gradient: ``autograd.grad(..., create_graph=True)``."""
    calls = at.calls("grad")
    if len(calls) != 1 or any(keyword.arg == "create_graph" for keyword in calls[0].keywords):
        return ()
    new = ast.keyword("create_graph", ast.Constant(True))
    keywords = [new if keyword.arg == "retain_graph" else keyword for keyword in calls[0].keywords]
    keywords += [new] if new not in keywords else []
    call = ast.Call(calls[0].func, calls[0].args, keywords)
    return (Replace(at.line, ast.unparse(calls[0]), ast.unparse(call)),)


def resampled(at: Statement) -> Fix:
    """Draw a sample that keeps the graph."""
    calls = at.calls("sample")
    if len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return ()
    new = ast.Call(ast.Attribute(calls[0].func.value, "rsample"), calls[0].args, calls[0].keywords)
    return (Replace(at.line, ast.unparse(calls[0]), ast.unparse(new)),)


def detached(calls: Sequence[ast.Call]) -> Fix:
    """Detach the only argument of a call, if there is exactly one such call."""
    if len(calls) != 1:
        return ()
    function, name = ast.unparse(calls[0].func), ast.unparse(calls[0].args[0])
    return (Replace(calls[0].lineno, f"{function}({name})", f"{function}({name}.detach())"),)


def kept(at: Statement) -> Fix:
    """Assign the dropped result to the tensor whose method was called."""
    target = owner(at.node)
    if not isinstance(at.node, ast.Expr) or not isinstance(at.value, ast.Call) or not target.isidentifier():
        return ()
    return (Insert(f"{target} = {ast.unparse(at.value)}", before=at.line), Delete(at.line))
