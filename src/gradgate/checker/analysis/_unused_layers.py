"""Finds the line that should have used a layer that gets no gradient."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from gradgate.checker.analysis._queries import in_losses
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    assigned,
    called,
    definitions,
    is_function,
    last_name,
    own_nodes,
    scope_at,
    scopes_of,
)
from gradgate.checker.analysis._slices import Slice, slice_at
from gradgate.checker.analysis._source import function_at, inside, nodes_of, statement_at, tree_of, whole_text
from gradgate.checker.analysis._statement import method
from gradgate.events import Backward, Cut, Frame, Ids, Site

_SETUP = re.compile(r"^(__init__|_?init|reset|setup|build|configure)")
_PRETRAINED = re.compile(r"pretrained|weights\s*=\s*[\w.]*[A-Z]")
_BY_NAME = ("getattr", "get_submodule", "__getattr__")
# Calls on layers that don't show whether a program uses them.
_ADMINISTRATION = {
    "parameters",
    "named_parameters",
    "state_dict",
    "load_state_dict",
    "apply",
    "modules",
    "to",
}
_ADMINISTRATION |= {"requires_grad_", "train", "eval", "cpu", "cuda", "half", "float", "double", "zero_grad"}
_ADMINISTRATION |= {"weight", "bias"}
# Methods that return a new tensor. With "_", they work in place.
_OUT_OF_PLACE = {"index_add", "index_copy", "index_fill", "index_put", "index_reduce", "masked_fill", "lerp"}
_OUT_OF_PLACE |= {"masked_scatter", "scatter", "scatter_add", "scatter_reduce", "addcmul", "addcdiv", "addmm"}
_OUT_OF_PLACE |= {"baddbmm"}


def dropped_result(sites: Iterable[Site]) -> tuple[Frame, str] | None:
    """Return the line around a layer's call that discards the result of an operation, and the operation's name."""
    for frame in dict.fromkeys(frame for site in sites for frame in site if frame.function != "<module>"):
        for node in own_nodes(function_at(frame)):
            if isinstance(node, ast.Expr) and method(node) in _OUT_OF_PLACE:
                return Frame(frame.file, node.lineno, frame.function), method(node)
    return None


def holders_of(name: str, files: tuple[str, ...]) -> list[str]:
    """Return the names of the layers that hold a parameter, innermost first, such as ["model.norm2", "model"].

    A layer is an attribute that the user's source sets, or a variable. The parameter itself is also listed if the
    source sets it on ``self``, but not if it is only set from outside, as in ``out.weight = embed.weight``, which
    ties a weight.
    """
    parts = name.split(".")
    known = assigned(files)
    attributes = inside(ast.Attribute, *map(tree_of, files))
    own = {
        node.attr
        for node in attributes
        if isinstance(node.ctx, ast.Store) and last_name(node.value) == "self"
    }
    last = len(parts) - 1
    held = [
        ".".join(parts[: place + 1])
        for place in range(last, 0, -1)
        if (parts[place] in own if place == last else "." + parts[place] in known)
    ]
    return [*held, parts[0]] if last and parts[0] in known else held


def is_read(key: str, files: tuple[str, ...]) -> bool:
    """Return whether the name of a layer is read: an attribute (".norm2") or a variable ("norm2")."""
    name = key.lstrip(".")
    for node in nodes_of(files):
        if isinstance(node, ast.Call) and called(node) in _BY_NAME:
            return True
        if isinstance(node, ast.Constant) and node.value == name:
            return True
        if key != name or (isinstance(node, ast.Attribute) and node.attr in _ADMINISTRATION):
            continue
        names = [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.Name)]
        if any(inner.id == name and isinstance(inner.ctx, ast.Load) for inner in names):
            return True
    return key != name and any(_reads(name, file) for file in files)


def _reads(attribute: str, file: str) -> list[Frame]:
    """Return where a file reads an attribute, except in methods that set up an object and in tests for None."""
    found = []
    for _, node in scopes_of(file):
        if is_function(node) and not _SETUP.match(node.name):
            tested = [test for test, _ in _tests(node)]
            found += [
                Frame(file, inner.lineno, node.name)
                for inner in own_nodes(node)
                if isinstance(inner, ast.Attribute) and inner.attr == attribute and inner not in tested
                if isinstance(inner.ctx, ast.Load)
            ]
    return found


def _tests(function: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield the expressions that conditions test for None or for truth, and what runs if there is a value."""
    for node in own_nodes(function):
        if isinstance(node, (ast.If, ast.IfExp)):
            test, then, otherwise = node.test, node.body, node.orelse
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, then, otherwise = test.operand, otherwise, then
            match test:
                case ast.Compare(test, [ast.Is()], [ast.Constant(None)]):
                    then = otherwise
                case ast.Compare(test, [ast.IsNot()], [ast.Constant(None)]):
                    pass
            yield test, (then[0] if isinstance(then, list) and then else node)


def shortened_loop(attribute: str, files: Iterable[str]) -> Frame | None:
    """Return the loop that leaves out the first or last layers of a list: ``for layer in self.layers[1:]``."""
    for scope in (scope for file in files for scope in scopes_of(file)):
        for node in own_nodes(scope.node):
            if isinstance(node, (ast.For, ast.comprehension)) and _is_shortened(node.iter, attribute):
                return Frame(scope.file, node.iter.lineno, getattr(scope.node, "name", ""))
    return None


def _is_shortened(iterated: ast.expr, attribute: str) -> bool:
    if all(node.attr != attribute for node in inside(ast.Attribute, iterated)):
        return False
    ranges = [node.args for node in inside(ast.Call, iterated) if called(node) == "range"]
    late = any(len(args) > 1 and getattr(args[0], "value", None) != 0 for args in ranges)
    early = any(inside(ast.Sub, *args) for args in ranges)
    return late or early or bool(inside(ast.Slice, iterated))


def line_without(key: str, files: Iterable[str]) -> tuple[Frame, bool] | None:
    """Return the line that should use a layer that is never read, and whether this is certain.

    If a sibling is used twice (``norm1`` in place of ``norm2``), the line is the second use. If a condition only
    tests whether the layer exists, the line is the one that then runs. Otherwise it is the layer's definition. It
    is not certain in a model that loads pretrained weights, because this training may not need all of its layers.
    """
    attribute, sure = key.lstrip("."), not loads_weights(files)
    for scope in (scope for file in files for scope in scopes_of(file) if key in definitions(scope)):
        values = [each.value for each in definitions(scope)[key]]
        value = next((each for each in values if getattr(each, "value", each) is not None), values[0])
        made = Frame(scope.file, value.lineno, "")
        if key == attribute:
            return made, sure
        order = [each[1:] for each in definitions(scope) if each.startswith(".")]
        siblings = [each for each in order if each != attribute and _stem(each) == _stem(attribute)]
        for uses in (_reads(sibling, scope.file) for sibling in siblings):
            again = [use for first, use in pairwise(uses) if first.function == use.function]
            if again:
                return again[-1], True
        for tested, then in (pair for each in scopes_of(scope.file) for pair in _tests(each.node)):
            if getattr(tested, "attr", "") == attribute:
                return Frame(scope.file, getattr(then, "lineno", 0), ""), sure
        bare = isinstance(value, ast.Call) and called(value) == "Parameter"
        return made, sure or bare
    return None


def loads_weights(files: Iterable[str]) -> bool:
    """Return whether a program loads the weights of a model that was trained elsewhere."""
    text = "".join(map(whole_text, files))
    return bool(_PRETRAINED.search(text)) or ("torch.load(" in text and "torch.save(" not in text)


def _stem(name: str) -> str:
    return re.sub(r"[\d_]+$", "", name) or name


def line_of_loss(run: Run, ids: Ids, site: Site, files: tuple[str, ...]) -> Frame | None:
    """Return the line that leaves a module's result out of the loss, or None if it is not found.

    The line is one where nothing reads the result, or where another value overwrites the result first. If a
    function computes only a number for display from the result, the line is the last one in this function that
    computes the loss.
    """
    backward = {event.site for event in run.of(Backward)}
    slices = [slice_at(site, files) for site in backward]
    for frame in site:
        statement = statement_at(frame)
        if isinstance(statement, ast.Expr):
            return frame
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if statement is not None and isinstance(target, ast.Name):
            line = _overwritten(frame, statement, target.id)
            if line is not None:
                return Frame(frame.file, line, frame.function)
        if statement is not None and target is not None and _unread(frame, target):
            after = [each for each in _loss_lines(frame, slices) if each > statement.lineno]
            single = isinstance(target, ast.Name) or not after
            return frame if single else Frame(frame.file, max(after), frame.function)
        if not isinstance(statement, ast.Return):
            break
    for frame in [event.site[0] for event in run.of(Cut) if event.scalar and event.parameters & ids]:
        calls = [each.line for site in backward for each in site if function_at(each) is function_at(frame)]
        last = max(calls, default=math.inf)
        lines = [line for line in _loss_lines(frame, slices) if line <= last]  # not those of an evaluation
        if lines:
            return Frame(frame.file, max(lines), frame.function)
    return None


def shown_loss(run: Run, ids: Ids, line: Frame) -> tuple[Frame, str] | None:
    """Return the line that computes a value for display from parameters that no loss reaches, and the value's name.

    If another line of the function adds up the loss, the value belongs there, and the result is None.
    """
    total = getattr(statement_at(line), "value", None)
    if isinstance(total, ast.BinOp) or isinstance(statement_at(line), ast.AugAssign):
        return None
    in_loss = {node.id for node in in_losses(run).values() if isinstance(node, ast.Name)}
    for cut in (event for event in run.of(Cut) if event.scalar and ids <= event.parameters and event.site):
        frame = cut.site[0]
        scope, statement = scope_at(frame), statement_at(frame)
        if scope is None or statement is None:
            continue
        shown = [
            node.value
            for node in ast.walk(statement)
            if isinstance(node, (ast.Attribute, ast.FormattedValue))
        ]
        names = {node.id for node in shown if isinstance(node, ast.Name)} - in_loss
        made = [(name, definitions(scope).get(name, ())) for name in names]
        single = [(name, each[0]) for name, each in made if len(each) == 1]
        assigned_to = [(name, each.value) for name, each in single if isinstance(each.statement, ast.Assign)]
        computed = [(name, value) for name, value in assigned_to if isinstance(value, ast.Call)]
        if len(computed) == 1:
            name, value = computed[0]
            return Frame(frame.file, value.lineno, frame.function), name
    return None


def _loss_lines(frame: Frame, slices: list[Slice]) -> list[int]:
    """Return the lines of a running function that assign a part of a loss."""
    return [
        node.lineno
        for node in own_nodes(function_at(frame))
        if isinstance(node, (ast.Assign, ast.AugAssign))
        and any(each.holds(Frame(frame.file, node.value.lineno, "")) for each in slices)
    ]


def _unread(frame: Frame, target: ast.expr) -> bool:
    """Return whether some name in ``target`` is never read in its function. Names like ``_`` don't count."""
    names = inside(ast.Name, function_at(frame))
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return any(node.id not in read and node.id[:1] != "_" for node in inside(ast.Name, target))


def _overwritten(frame: Frame, statement: ast.stmt, name: str) -> int | None:
    """Return the line of the next assignment to a name, if nothing reads the name in between."""
    later = [
        (node.lineno, isinstance(node.ctx, ast.Store))
        for node in own_nodes(function_at(frame))
        if isinstance(node, ast.Name) and node.id == name and node.lineno > (statement.end_lineno or 0)
    ]
    line, stored = min(later, default=(0, False))
    return line if stored else None
