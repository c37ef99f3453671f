"""Fixes that keep a value attached to its graph, or detach it."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Sequence

from gradgate.checker.analysis._scopes import (
    called,
    imported,
    is_function,
    is_read,
    last_name,
    names_read,
    names_stored,
    own_calls,
    own_nodes,
    root_of,
)
from gradgate.checker.analysis._source import inside, tree_of
from gradgate.checker.analysis._statement import Statement, method, operand, owner
from gradgate.checker.fixes import Delete, Fix, Insert, Replace
from gradgate.events import Frame

_NEW_TENSORS = frozenset(("tensor", "as_tensor", "asarray", "array", "Tensor", "FloatTensor", "DoubleTensor"))
_TO_NUMBERS = frozenset(("numpy", "tolist", "argmax", "argmin", "long", "int", "round", "float"))


def without_cut(at: Statement, ops: tuple[str, ...], part: ast.expr | None = None) -> Fix:
    """Remove the operation in ``ops`` that detaches a value from its graph.

    If ``part`` is an expression of this statement, only an operation inside ``part`` is removed. A ``no_grad``
    stays, because some of the values under it may have no graph on purpose.
    """
    if is_function(at.node) or isinstance(at.node, ast.With):
        return ()
    copy = new_tensor(at, ops)
    if copy is not None:
        return _stacked(at, copy, ops)
    here = part is not None and any(node is part for node in at.expressions())
    nodes = list(ast.walk(part)) if part is not None and here else list(at.expressions())
    cuts = [node for node in nodes if isinstance(node, ast.expr) and _cut_value(node, ops) is not None]
    if len(cuts) != 1 or _becomes_number(at, cuts[0], alone=here):
        return ()
    value = _cut_value(cuts[0], ops)
    assert value is not None  # noqa: S101
    targets = at.node.targets if isinstance(at.node, ast.Assign) and at.value is cuts[0] else []
    if [ast.unparse(target) for target in targets] == [ast.unparse(value)]:
        return (Delete(at.line),)  # x = x.detach()
    attribute, *outer = at.around(cuts[0]) or [at.node]
    leaf = isinstance(attribute, ast.Attribute) and attribute.attr == "requires_grad_"  # of x.detach()
    return _replaced(at, outer[0] if leaf else cuts[0], operand(value))


def new_tensor(at: Statement, ops: tuple[str, ...]) -> ast.Call | None:
    """Return the call that makes a tensor without a graph from the cut values: ``torch.tensor([x.item()])``.

    The call is in this statement, or later in the function if the statement stores the values:
    ``v.append(x.item())``. The function may also return the list to one that gives it the same name.
    """
    cuts = [
        node for node in at.expressions() if isinstance(node, ast.expr) and _cut_value(node, ops) is not None
    ]
    name = owner(at.node) if method(at.node) == "append" else ""
    if isinstance(at.node, ast.Assign):
        name = ast.unparse(at.node.targets[0])
    others = inside(ast.Call, tree_of(at.file)) if method(at.node) == "append" else []
    for call in (*own_calls(at.function), *others) if cuts else ():
        if called(call) in _NEW_TENSORS and call.args:
            values = list(ast.walk(call.args[0]))
            if cuts[0] in values or (call.lineno > at.line and name and ast.unparse(call.args[0]) == name):
                return call
    return None


def _stacked(at: Statement, copy: ast.Call, ops: tuple[str, ...]) -> Fix:
    """Stack the values instead of a copy of their numbers, if nothing else reads the numbers."""
    values, text, stored = copy.args[0], ast.unparse(copy.args[0]), isinstance(at.node, ast.Assign)
    if called(copy) != "tensor" or copy.keywords:
        return ()
    if any(copy is call for call in at.calls()):
        for node in ast.walk(values):
            cut = _cut_value(node, ops) if isinstance(node, ast.expr) else None
            text = text.replace(ast.unparse(node), operand(cut)) if cut is not None else text
        several, alone = isinstance(values, (ast.List, ast.ListComp)), _cut_value(values, ops) is not None
        new = f"torch.stack({text})" if several else text
        return (Replace(at.line, ast.unparse(copy), new),) if several or alone else ()
    reads = [
        node for node in inside(ast.Name, at.function) if node.id == text and isinstance(node.ctx, ast.Load)
    ]
    inner = at.value.elt if isinstance(at.value, ast.ListComp) else at.value
    pairs = [(node, _cut_value(node, ops)) for node in at.expressions() if isinstance(node, ast.expr)]
    cuts = [(ast.unparse(node), operand(cut)) for node, cut in pairs if cut is not None]
    if len(cuts) != 1 or len(reads) > (1 if stored else 2) or (stored and inner is at.value):
        return ()
    return Replace(at.line, *cuts[0]), Replace(copy.lineno, ast.unparse(copy), f"torch.stack({text})")


def _cut_value(node: ast.expr, ops: tuple[str, ...]) -> ast.expr | None:
    """Return the ``x`` of ``x.detach()``, ``x.item()`` or ``x.data``."""
    function = node.func if isinstance(node, ast.Call) and not node.args else None
    if isinstance(function, ast.Attribute) and function.attr in {"detach", "item"}.intersection(ops):
        return function.value
    data = isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Load)
    return node.value if isinstance(node, ast.Attribute) and data and "data" in ops else None


def _becomes_number(at: Statement, cut: ast.expr, *, alone: bool) -> bool:
    """Return whether the value also loses its graph in another way: as an array, a number or an index."""
    around = at.around(cut)
    beside = around if alone else at.expressions()
    if any(isinstance(node, ast.Attribute) and node.attr in _TO_NUMBERS for node in beside):
        return True
    calls = [ast.unparse(node.func) for node in around if isinstance(node, ast.Call)]
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


def _uses(at: Statement, names: Container[str]) -> list[tuple[Statement, ast.Name]]:
    """Return where a statement's function reads these variables."""
    reads = [node for node in own_nodes(at.function) if is_read(node) and node.id in names]
    found = [(Statement.at(Frame(at.file, node.lineno, "")), node) for node in reads]
    return [(statement, node) for statement, node in found if statement is not None]


def _may_be_compared(
    at: Statement, value: ast.AST, modules: Container[str], seen: frozenset[str] = frozenset()
) -> bool:
    """Return whether an expression may meet another value in a product, a difference or a function."""
    inner = value
    for outer in at.around(value):
        if isinstance(outer, ast.Call) and inner is not outer.func and last_name(outer.func) in modules:
            return False
        if any(names_read(other) for other in _operands(at, outer) if other is not inner):
            return True
        inner = outer
    targets = at.node.targets if isinstance(at.node, ast.Assign) else []
    if isinstance(at.node, ast.AugAssign) and isinstance(at.node.op, ast.Add):
        targets = [at.node.target]
    if not targets or not all(isinstance(target, ast.Name) for target in targets):
        return True  # returned or stored
    names = names_stored(*targets) - seen
    return any(_may_be_compared(use, node, modules, seen | names) for use, node in _uses(at, names))


def _operands(at: Statement, node: ast.AST) -> list[ast.AST]:
    """Return the values that an expression combines, except by adding or joining them."""
    if isinstance(node, ast.BinOp):
        return [] if isinstance(node.op, ast.Add) else [node.left, node.right]
    if not isinstance(node, ast.Call):
        return []
    is_method = isinstance(node.func, ast.Attribute) and root_of(node.func) not in {
        "self",
        *imported(at.file),
    }
    return [*node.args, *node.keywords, *([node.func] if is_method else [])]


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
