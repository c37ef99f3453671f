"""Finds averages of weights that change nothing because their result is lost."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    functions_of,
    no_grad_around,
    own_nodes,
    scopes_of,
)
from gradgate.checker.analysis._source import nodes_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Delete, Fix, Insert, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame, Stepped

OPS = ("mul", "add", "sub", "div", "lerp", "addcmul", "addcdiv")  # each returns a new tensor
_READS = ("items", "keys", "values")
_SOURCES = ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict")


def lost_averages(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report loops over parameters that compute an average of weights but don't store it."""
    steps = [event for event in run.of(Stepped) if event.moved]
    files = tuple(sorted({frame.file for event in run.events for frame in event.site})) if steps else ()
    names = {called(node) for node in nodes_of(files) if isinstance(node, ast.Call)}
    for scope in (each for file in files for each in scopes_of(file)):
        if getattr(scope.node, "name", "forward") not in names | {"forward"}:
            continue  # a function that nothing calls
        for node, what, why in _lost(scope, files):
            yield rule.finding(
                Frame(scope.file, node.lineno, ""),
                f"`{what}` changes no weights: {why}.",
                why=f"The averaged network keeps its values, while {len(steps)} steps train the other network.",
                advice="Update in place, under torch.no_grad(): average.lerp_(weights, 1 - decay).",
                fix=_in_place,
                count=len(steps),
                evidence={"steps": len(steps)},
            )


def _lost(scope: Scope, files: tuple[str, ...]) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yield the statements of a function whose result is lost, with their text and the reason."""
    loops = [node for node in own_nodes(scope.node) if isinstance(node, ast.For)]
    for loop in loops:
        targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        for node in statements_of(loop):
            by_gradient = "grad" in f"{ast.unparse(loop.iter)} {ast.unparse(node)}".lower()
            if not isinstance(node, (ast.Expr, ast.Assign)) or by_gradient:
                continue  # _updates_by_hand.py
            text = ast.unparse(node)
            if isinstance(node, ast.Expr):
                if _is_dropped(node.value, targets) and _is_over_weights(scope, loop):
                    yield node, text, "the result is a new tensor that is not stored"
                continue
            target = node.targets[0]
            if not _averages(node.value, target, targets):
                continue
            if isinstance(target, ast.Name) and target.id in targets:
                if _is_over_weights(scope, loop) and not _is_read(target.id, node, loop, scope):
                    yield node, text, f"it assigns a new tensor to the loop variable `{target.id}`"
            elif isinstance(target, ast.Subscript) and _is_fresh(target.value, scope, files):
                yield node, text, f"`{ast.unparse(target.value)}` is a new dict that nothing reads"


def statements_of(loop: ast.For) -> Iterator[ast.stmt]:
    """Yield the statements of a loop, except in loops inside it."""
    todo: list[ast.AST] = list(loop.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef, ast.expr)):
            todo += ast.iter_child_nodes(node)


def _names(node: ast.AST) -> set[str]:
    return {str(getattr(inner, "attr", getattr(inner, "id", ""))) for inner in ast.walk(node)}


def _is_over_weights(scope: Scope, loop: ast.For) -> bool:
    """Return whether a loop runs over the weights of a module, directly or through a name."""
    todo, seen = [loop.iter], set[str]()
    while todo:
        value = todo.pop()
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and called(node) in _SOURCES:
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                todo += [each.value for each in definitions(scope).get(node.id, ())]
    return False


def _is_dropped(value: ast.expr, targets: set[str]) -> bool:
    """Return whether ``e.mul(d).add_(p)`` begins with an operation that returns a new tensor."""
    chain: list[ast.Call] = []
    while isinstance(value, (ast.Call, ast.Attribute)):
        if isinstance(value, ast.Call):
            if not isinstance(value.func, ast.Attribute):
                return False
            if value.func.attr not in ("detach", "view", "view_as"):
                chain.append(value)
            value = value.func.value
        else:
            value = value.value
    if not chain or called(chain[-1]) not in OPS or not _is_of(value, targets):
        return False
    if any(keyword.arg == "out" for call in chain for keyword in call.keywords):
        return False
    # A single add() may belong to a set.
    operations = [called(call).rstrip("_") in OPS for call in chain]
    return all(operations) and (len(chain) > 1 or called(chain[0]) == "lerp")


def _is_of(value: ast.expr, targets: set[str]) -> bool:
    """Return whether a value is a loop variable, or an item selected by a loop variable."""
    if isinstance(value, ast.Subscript):
        value = value.slice
    return isinstance(value, ast.Name) and value.id in targets


def _averages(value: ast.expr, old: ast.expr, targets: set[str]) -> bool:
    """Return whether a value combines the old value with another value of the loop."""
    if not isinstance(value, (ast.BinOp, ast.Call)):
        return False
    text = ast.unparse(old)
    loads = [node for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Subscript))]
    others = [node for node in loads if _is_of(node, targets) and ast.unparse(node) != text]
    if isinstance(old, ast.Subscript):
        others = [node for node in others if isinstance(node, ast.Subscript) or not _is_index(node, loads)]
    joins = any(
        isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) for node in ast.walk(value)
    )
    joins |= any(
        isinstance(node, ast.Call) and called(node).rstrip("_") in ("lerp", "add", "sub")
        for node in ast.walk(value)
    )
    return joins and bool(others) and any(ast.unparse(node) == text for node in loads)


def _is_index(name: ast.expr, loads: list[ast.Name | ast.Subscript]) -> bool:
    return any(isinstance(node, ast.Subscript) and node.slice is name for node in loads)


def _is_read(name: str, assignment: ast.stmt, loop: ast.For, scope: Scope) -> bool:
    """Return whether a loop variable is read after an assignment in the same iteration."""
    inside = {id(node) for node in ast.walk(loop)}
    rebound = {
        id(inner)
        for other in ast.walk(scope.node)
        if isinstance(other, (ast.For, ast.comprehension))
        and other is not loop
        and name in _names(other.target)
        for inner in ast.walk(other)
    }
    own = {id(node) for node in ast.walk(assignment)}
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and id(node) not in own
        and node.lineno >= assignment.lineno
        and (id(node) in inside or id(node) not in rebound)
        for node in ast.walk(scope.node)
    )


def _is_fresh(value: ast.expr, scope: Scope, files: tuple[str, ...]) -> bool:
    """Return whether a dict is a new one from ``state_dict()``, and nothing reads its new items."""
    if any("state_dict" in functions_of(file) for file in files):
        return False  # a user's own state_dict may return a stored dict
    if not isinstance(value, ast.Name):
        return _is_new_dict(value)
    given = definitions(scope).get(value.id, ())
    whole = [each for each in given if each.whole]
    if not whole or not all(_is_new_dict(each.value) for each in whole):
        return False
    return all(_reads_nothing(use, scope) for use in _uses(value.id, scope))


def _is_new_dict(value: ast.expr) -> bool:
    """Return whether a value is ``m.state_dict()`` or ``dict(m.named_parameters())``."""
    if not isinstance(value, ast.Call):
        return False
    if called(value) == "state_dict" and isinstance(value.func, ast.Attribute):
        return True
    given = value.args[0] if len(value.args) == 1 else None
    return (
        called(value) in ("dict", "OrderedDict") and isinstance(given, ast.Call) and called(given) in _SOURCES
    )


def _uses(name: str, scope: Scope) -> list[ast.Name]:
    nodes = (node for node in ast.walk(scope.node) if isinstance(node, ast.Name) and node.id == name)
    return [node for node in nodes if isinstance(node.ctx, ast.Load)]


def _reads_nothing(use: ast.Name, scope: Scope) -> bool:
    """Return whether a use of the dict is a store or part of one, an in-place write, or its keys."""
    parents = {child: parent for parent in ast.walk(scope.node) for child in ast.iter_child_nodes(parent)}
    parent = parents.get(use)
    if isinstance(parent, ast.For):
        return parent.iter is use
    if isinstance(parent, ast.Attribute):
        return parent.attr in _READS
    if isinstance(parent, ast.Compare):
        return True  # k in state
    if not isinstance(parent, ast.Subscript) or parent.value is not use:
        return False
    if isinstance(parent.ctx, ast.Store):
        return True
    above = parents.get(parent)
    if isinstance(above, ast.Attribute) and above.attr.endswith("_") and not above.attr.endswith("__"):
        return True
    node: ast.AST | None = parent
    while node is not None and not isinstance(node, ast.stmt):
        node = parents.get(node)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(target, ast.Subscript) and ast.unparse(target) == ast.unparse(parent)


# The fix


def _in_place(at: Statement) -> Fix:
    """Write the average into the tensor, if the line is under no_grad or uses ``.data``."""
    node, value = at.node, at.value
    quiet = no_grad_around(Frame(at.file, at.line, "")) is not None
    if isinstance(node, ast.Assign) and value is not None and quiet:
        text = f"{ast.unparse(node.targets[0])}.copy_({ast.unparse(value)})"
        return (Insert(text, after=at.line), Delete(at.line))
    if not isinstance(node, ast.Expr) or not isinstance(value, ast.Call):
        return ()
    first, old = value, ast.unparse(value)
    while isinstance(first.func, ast.Attribute) and isinstance(first.func.value, ast.Call):
        first = first.func.value
    if not isinstance(first.func, ast.Attribute) or not (
        quiet or ast.unparse(first.func.value).endswith(".data")
    ):
        return ()
    changed: ast.expr = ast.parse(old, mode="eval").body
    call = changed
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        call.func.attr += "_" * (call.func.attr in OPS)
        call = call.func.value
    return (Replace(at.line, old, ast.unparse(changed)),)
