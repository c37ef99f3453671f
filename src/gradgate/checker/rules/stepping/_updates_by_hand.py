"""Finds updates by hand that change no parameter because the result is lost or gets another name."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import without_gradients
from gradgate.checker.analysis._source import tree_of
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Delete, Fix, Insert
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Site, Stepped, Written

_LEAST = 3  # backward calls
_RESULTS = ("sub", "add", "mul", "div", "addcmul", "addcdiv", "lerp")


def lost_updates(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report updates whose result is lost, if no parameter ever changes."""
    if any(event.moved for event in run.of(Stepped)) or any(
        event.target == "value" for event in run.of(Written)
    ):
        return
    stepped = {number for number, owners in run.owners.items() if any(run.stepping[each] for each in owners)}
    counts = Counter(number for event in run.of(Backward) for number in event.reached - stepped)
    ids = frozenset(number for number, count in counts.items() if count >= _LEAST)
    if not ids or not all(run.parameters[number].still for number in ids):
        return
    calls = [event for event in run.of(Backward) if event.reached & ids]
    for file in {frame.file for event in calls for frame in event.site}:
        for line in _lost_updates(tree_of(file)):
            yield rule.finding(
                Frame(file, line, ""),
                "This update creates a new tensor instead of changing the parameter: no parameter changes in "
                f"{len(calls)} backward calls.",
                why="Nothing is trained: the parameters keep their initial values.",
                advice="Update in place, under torch.no_grad(): p -= lr * p.grad.",
                fix=_in_place,
                count=len(calls),
                evidence={"backward_calls": len(calls)},
                about=ids,
            )


def rebound_leaves(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report leaves that are rebound under no_grad: only a line's first backward call reaches them."""
    calls: dict[Site, list[Backward]] = defaultdict(list)
    for event in run.of(Backward):
        if event.seen:
            calls[event.site].append(event)
    for site, (first, *later) in calls.items():
        if len(later) <= _LEAST or max(event.others for event in later) >= first.others:
            continue
        for file in {frame.file for frame in site}:
            for line, name in _rebinds(tree_of(file)):
                yield rule.finding(
                    Frame(file, line, ""),
                    f"`{name}` is rebound to a tensor without requires_grad: the first backward call reached "
                    f"it, but none of the {len(later)} later calls did.",
                    why="The tensor is updated once and is a constant afterwards.",
                    advice=f"Update in place, under torch.no_grad(): {name} -= ..., then {name}.grad = None.",
                    count=len(later),
                    evidence={"backward_calls": len(later)},
                )


def _rebinds(tree: ast.Module | None) -> Iterator[tuple[int, str]]:
    """Yield lines that assign ``w = w - lr * w.grad`` under no_grad, if no line sets requires_grad later."""
    text = ast.unparse(tree) if tree is not None else ""
    for scope in ast.walk(tree) if tree is not None else ():
        if not isinstance(scope, (ast.With, ast.FunctionDef)) or without_gradients(scope) is None:
            continue
        for node in ast.walk(scope):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
                continue
            name = ast.unparse(node.targets[0])
            downhill = f"{name}.grad" in ast.unparse(node.value.right)
            if ast.unparse(node.value.left) == name and downhill and f"{name}.requires_grad" not in text:
                yield node.lineno, name


def _lost_updates(tree: ast.Module | None) -> Iterator[int]:
    """Yield lines that compute an update from a gradient but assign it to nothing or to a local name."""
    assignments = (
        [node for node in ast.walk(tree) if isinstance(node, ast.Assign)] if tree is not None else []
    )
    copies = {
        ast.unparse(node.targets[0])
        for node in assignments
        if isinstance(node.value, ast.Call) and method(node) == "state_dict"
    }
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
                and _is_lost(node, names, copies)
            ):
                yield node.lineno


def _is_lost(node: ast.Assign | ast.Expr, names: set[str], copies: set[str]) -> bool:
    if isinstance(node, ast.Expr):  # p.sub(lr * p.grad), without the underscore
        return method(node) in _RESULTS
    target = node.targets[0]
    if isinstance(target, ast.Subscript):  # each call of state_dict returns a new dict
        return ast.unparse(target.value) in copies or ast.unparse(target.value).endswith(".state_dict()")
    if isinstance(target, ast.Name) and isinstance(node.value, ast.ListComp):  # a new list of new tensors
        made = node.value.elt
        return isinstance(made, ast.BinOp) and isinstance(made.op, ast.Sub)
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


# The fix


def _in_place(at: Statement) -> Fix:
    """Turn ``p = p - ...`` into ``p -= ...``, if it is already under no_grad."""
    node, value = at.node, at.value
    quiet = any("no_grad" in ast.unparse(part.items[0]) for part in at.path if isinstance(part, ast.With))
    if not quiet or not isinstance(node, ast.Assign) or not isinstance(value, ast.BinOp):
        return ()
    target = ast.unparse(node.targets[0])
    if not isinstance(value.op, ast.Sub) or ast.unparse(value.left) != target:
        return ()
    return (Insert(f"{target} -= {ast.unparse(value.right)}", after=at.line), Delete(at.line))
