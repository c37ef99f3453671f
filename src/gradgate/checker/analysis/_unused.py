"""Where in the source a layer that is never used should have been used: the line that a person would change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Definition,
    Function,
    called,
    definitions,
    own_nodes,
    scope_at,
    scopes_of,
)
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import statement_at, tree_of
from gradgate.events import Cut, Frame, Ids, Site

_SETUP = re.compile(r"^(__init__|_?init|reset|setup|build|configure)")
_CARE = frozenset(  # what is done with a layer that is not used
    ("parameters", "named_parameters", "requires_grad_", "state_dict", "load_state_dict", "apply", "modules")
) | {"train", "eval", "to", "cpu", "cuda", "half", "float", "double", "zero_grad", "weight", "bias"}
_CONSTANTS = {"ones_like", "zeros_like", "ones", "zeros", "full", "full_like"}


def holders_of(name: str, files: Iterable[str]) -> list[str]:
    """Return what the user's source calls the layer of a parameter: ["model.norm2", "model"], the innermost first.

    A layer is an attribute that is set, or a variable. A weight that some layer is given, ``out.weight =
    embed.weight``, is no layer of that name.
    """
    parts = name.split(".")
    scopes = [scope for file in files for scope in scopes_of(file)]
    known = {key for scope in scopes for key in definitions(scope)}
    own = {key for scope in scopes for key, several in definitions(scope).items() if _on_self(key, several)}
    places = range(len(parts) - 1, 0, -1)
    found = [place for place in places if "." + parts[place] in (own if place == len(parts) - 1 else known)]
    held = [".".join(parts[: place + 1]) for place in found]
    return [*held, parts[0]] if len(parts) > 1 and parts[0] in known else held


def _on_self(key: str, several: Iterable[Definition]) -> bool:
    """Say whether an object sets an attribute of its own."""
    targets = [
        target for one in several if isinstance(one.statement, ast.Assign) for target in one.statement.targets
    ]
    targets += [one.statement.target for one in several if isinstance(one.statement, ast.AnnAssign)]
    return any(
        isinstance(node, ast.Attribute)
        and "." + node.attr == key
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for target in targets
        for node in ast.walk(target)
    )


def is_read(key: str, files: Iterable[str]) -> bool:
    """Say whether a layer is used, an attribute (".norm2") or a variable ("norm2"), or may be by its name."""
    if read_indirectly(key.lstrip("."), files):
        return True
    if key.startswith("."):
        return bool(reads(key[1:], files))
    for file in files:
        tree = tree_of(file)
        for node in ast.walk(tree) if tree is not None else ():
            for inner in ast.iter_child_nodes(node):
                name = isinstance(inner, ast.Name) and inner.id == key and isinstance(inner.ctx, ast.Load)
                if name and not (isinstance(node, ast.Attribute) and node.attr in _CARE):
                    return True
    return False


def reads(attribute: str, files: Iterable[str]) -> list[tuple[Function, ast.Attribute]]:
    """Return where an attribute is read, outside of what sets an object up."""
    found = []
    for file in files:
        for scope in scopes_of(file):
            if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _SETUP.match(
                scope.node.name
            ):
                continue
            found += [
                (scope.node, node)
                for node in own_nodes(scope.node)
                if isinstance(node, ast.Attribute)
                and node.attr == attribute
                and isinstance(node.ctx, ast.Load)
            ]
    return found


def read_indirectly(attribute: str, files: Iterable[str]) -> bool:
    """Say whether an attribute may be read by its name: ``getattr(self, f"norm{i}")``."""
    for file in files:
        tree = tree_of(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call) and called(node) in ("getattr", "get_submodule", "__getattr__"):
                return True
            if isinstance(node, ast.Constant) and node.value == attribute:
                return True
    return False


def skipped_in(attribute: str, files: Iterable[str]) -> Frame | None:
    """Return the loop that goes through a list of layers and leaves out some at an end: ``self.layers[1:]``."""
    for file in files:
        for scope in scopes_of(file):
            for node in own_nodes(scope.node):
                if isinstance(node, (ast.For, ast.comprehension)) and _leaves_out(node.iter, attribute):
                    return Frame(file, node.iter.lineno, getattr(scope.node, "name", ""))
    return None


def _leaves_out(iterated: ast.expr, attribute: str) -> bool:
    """Say whether what is iterated over is a part of an attribute, or numbers that begin or end within it."""
    if not any(isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(iterated)):
        return False
    for node in ast.walk(iterated):
        if isinstance(node, ast.Slice):
            return True
        if isinstance(node, ast.Call) and called(node) == "range":
            first = node.args[0] if len(node.args) > 1 else None
            late = first is not None and getattr(first, "value", None) != 0
            early = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub) for one in node.args)
            return late or early
    return False


def line_without(key: str, files: Iterable[str]) -> tuple[Frame, bool] | None:
    """Return the line that reads another attribute in the place of one that is never read, and whether it is sure.

    That is the second use of a sibling (``norm1`` where ``norm2`` was meant), a constant after the use of the one
    defined before it, or that use; else where the attribute is defined. A layer that is never used at all may be
    left over: that is not sure, unless it is a bare parameter. Of a variable it is the line that makes it.
    """
    attribute = key[1:]
    if not key.startswith("."):
        made_at = [
            (file, one)
            for file in files
            for made in scopes_of(file)
            for one in definitions(made).get(key, ())
        ]
        return next(((Frame(file, one.value.lineno, ""), False) for file, one in made_at), None)
    for file in files:
        for made in scopes_of(file):
            several = definitions(made).get("." + attribute, ())
            if not several:
                continue
            order = [key[1:] for key in definitions(made) if key.startswith(".")]
            siblings = [one for one in order if one != attribute and _stem(one) == _stem(attribute)]
            before = order[: order.index(attribute)][-1:]
            for one in siblings:
                for function in {id(f): f for f, _ in reads(one, [file])}.values():
                    uses = [node for _, node in reads(one, [file]) if node in set(own_nodes(function))]
                    if len(uses) > 1:
                        return Frame(file, uses[-1].lineno, function.name), True
            for one in before:
                for function, node in reads(one, [file])[-1:]:
                    constant = _constant_after(function, node.lineno)
                    bare = isinstance(several[0].value, ast.Call) and called(several[0].value) == "Parameter"
                    return Frame(file, constant or node.lineno, function.name), bare or constant is not None
            value = several[0].value
            return Frame(file, value.lineno, ""), isinstance(value, ast.Call) and called(value) == "Parameter"
    return None


def _stem(name: str) -> str:
    return re.sub(r"[\d_]+$", "", name) or name


def _constant_after(function: Function, line: int) -> int | None:
    lines = [
        node.lineno
        for node in own_nodes(function)
        if isinstance(node, ast.Call) and called(node) in _CONSTANTS and node.lineno >= line
    ]
    return min(lines, default=None)


def line_of_loss(
    run: Run, ids: Ids, site: Site, backwards: Iterable[Site], files: Iterable[str]
) -> Frame | None:
    """Return the line that leaves out what a module gave.

    That is the one that overwrites it before it is read, or the sum of the loss in the function that only reports
    it; None where neither is found.
    """
    for frame in site:
        statement = statement_at(frame)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            line = _overwritten(frame, statement, statement.targets[0].id)
            return (
                Frame(frame.file, line, frame.function)
                if line
                else None or _reported(run, ids, backwards, files)
            )
        if not isinstance(statement, ast.Return):
            break
    return _reported(run, ids, backwards, files)


def _overwritten(frame: Frame, statement: ast.stmt, name: str) -> int | None:
    """Return the line of the next assignment to a name, where nothing reads it before."""
    scope = scope_at(frame)
    if scope is None:
        return None
    later = [
        node
        for node in own_nodes(scope.node)
        if isinstance(node, ast.Name)
        and node.id == name
        and node.lineno > (statement.end_lineno or frame.line)
    ]
    later.sort(key=lambda node: (node.lineno, isinstance(node.ctx, ast.Store)))
    return later[0].lineno if later and isinstance(later[0].ctx, ast.Store) else None


def _reported(run: Run, ids: Ids, backwards: Iterable[Site], files: Iterable[str]) -> Frame | None:
    slices = [Slice(site, files) for site in backwards]
    for event in run.of(Cut):
        scope = scope_at(event.site[0]) if event.scalar and event.parameters & ids else None
        if scope is None:
            continue
        lines = [
            statement.value.lineno
            for statement in own_nodes(scope.node)
            if isinstance(statement, (ast.Assign, ast.AugAssign))
            and any(_sums(node) for node in _parts(statement.value))
            and any(one.holds(Frame(scope.file, statement.value.lineno, "")) for one in slices)
        ]
        if lines:
            return Frame(scope.file, max(lines), event.site[0].function)
    return None


def _parts(value: ast.expr) -> Iterator[ast.AST]:
    yield value
    yield from ast.iter_child_nodes(value)


def _sums(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return True
    return isinstance(node, ast.Name) or (isinstance(node, ast.Call) and called(node) in ("sum", "stack"))
