"""Names in the user's source: functions, the definitions of names, and calls.

Variables are resolved within one function, and functions by name within the files of the run. Nothing is executed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, TypeGuard

from gradgate.checker.analysis._source import (
    FUNCTIONS,
    function_at,
    nodes_of,
    path_to,
    spans,
    tree_of,
)
from gradgate.events import Frame

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Scope(NamedTuple):
    """A function or a module's own statements, and the file that contains them."""

    file: str
    node: ast.AST


class Definition(NamedTuple):
    """A statement that assigns a value to a name, and the value. ``place``: the index in an unpacked tuple."""

    statement: ast.AST
    value: ast.expr
    place: int | None = None
    whole: bool = True  # False: the statement adds to the name's value


def is_function(node: ast.AST) -> TypeGuard[Function]:
    """Return whether a node defines a function."""
    return isinstance(node, FUNCTIONS)


def scope_at(frame: Frame) -> Scope | None:
    """Return the function that a frame was running, or the module."""
    function = function_at(frame)
    return Scope(frame.file, function) if function is not None else None


@functools.lru_cache(maxsize=64)
def functions_of(file: str) -> dict[str, tuple[Function, ...]]:
    """Return a file's functions and methods by name."""
    found: dict[str, tuple[Function, ...]] = {}
    for node in nodes_of([file]):
        if is_function(node):
            found[node.name] = (*found.get(node.name, ()), node)
    return found


def functions(name: str, files: Iterable[str]) -> list[Scope]:
    """Return the functions and methods with this name."""
    return [Scope(file, node) for file in files for node in functions_of(file).get(name, ())]


@functools.lru_cache(maxsize=64)
def scopes_of(file: str) -> tuple[Scope, ...]:
    """Return the scopes of a file: the module, and each function."""
    tree = tree_of(file)
    inner = (Scope(file, node) for several in functions_of(file).values() for node in several)
    return (Scope(file, tree), *inner) if tree is not None else ()


@functools.lru_cache(maxsize=64)
def imported(file: str) -> frozenset[str]:
    """Return the names that a file imports."""
    return frozenset(
        (alias.asname or alias.name).split(".")[0]
        for node in nodes_of([file])
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )


@functools.lru_cache(maxsize=512)
def definitions(scope: Scope) -> dict[str, tuple[Definition, ...]]:
    """Return the definitions of each name in a function: "loss", or ".head" for attributes of any object."""
    found: dict[str, list[Definition]] = {}

    def add(target: ast.AST, statement: ast.AST, value: ast.expr, place: int | None = None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for number, item in enumerate(target.elts):
                add(item, statement, *part_of(value, number))
        elif isinstance(target, ast.Starred):
            add(target.value, statement, value)
        else:
            whole = not isinstance(target, ast.Subscript)
            found.setdefault(key_of(target), []).append(Definition(statement, value, place, whole=whole))

    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                add(target, node, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            add(node.target, node, node.value)
        elif isinstance(node, ast.AugAssign):
            found.setdefault(key_of(node.target), []).append(Definition(node, node.value, whole=False))
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            add(node.target, node, node.iter)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    add(item.optional_vars, node, item.context_expr)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Attribute):  # losses.append(loss)
                for given in call.args:
                    key = key_of(call.func.value)
                    found.setdefault(key, []).append(Definition(node, given, whole=False))
    return {name: tuple(several) for name, several in found.items()}


def part_of(value: ast.expr, place: int) -> tuple[ast.expr, int | None]:
    """Return the part of a value that is unpacked at an index: index 1 of ``zip(a, b)`` is part of ``b``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        if value.func.id == "zip" and place < len(value.args):
            return value.args[place], None
        if value.func.id == "enumerate" and value.args:
            return (value.args[0], None) if place else (ast.copy_location(ast.Constant(0), value), None)
    if isinstance(value, ast.Tuple) and place < len(value.elts):
        return value.elts[place], None
    return value, place


@functools.lru_cache(maxsize=1024)
def own_nodes(node: ast.AST | None) -> tuple[ast.AST, ...]:
    """Return the nodes of a function in source order, excluding functions and classes defined inside it."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(node))[::-1] if node is not None else []
    while todo:
        inner = todo.pop()
        found.append(inner)
        if not is_function(inner) and not isinstance(inner, ast.ClassDef):
            todo += list(ast.iter_child_nodes(inner))[::-1]
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def own_calls(node: ast.AST) -> tuple[ast.Call, ...]:
    """Return the calls among a function's own nodes."""
    return tuple(inner for inner in own_nodes(node) if isinstance(inner, ast.Call))


def key_of(node: ast.AST) -> str:
    """Return the key of an expression in :func:`definitions`: "loss", ".head", or ""."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    return "." + node.attr if isinstance(node, ast.Attribute) else ""


def returned(scope: Scope) -> list[ast.expr]:
    """Return the expressions that a function returns or yields."""
    kinds = (ast.Return, ast.Yield)
    values = [node.value for node in own_nodes(scope.node) if isinstance(node, kinds)]
    return [value for value in values if value is not None]


def last_name(node: ast.AST) -> str:
    """Return the last name of an expression: "clip_grad_norm_" of ``nn.utils.clip_grad_norm_``, or ""."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def called(call: ast.Call) -> str:
    """Return the last part of the called name: "item" in ``loss.item()``."""
    return last_name(call.func)


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """Return an argument that is passed by position or keyword."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[place] if place < len(call.args) else None


def statements_at(frame: Frame) -> list[ast.AST]:
    """Return the innermost statements of a line. There may be several."""
    path = path_to(frame.file, frame.line)
    beside = ast.iter_child_nodes(path[-2]) if len(path) > 1 else ()
    return [node for node in beside if isinstance(node, ast.stmt) and spans(node, frame.line)] or [
        *path[1:][-1:]
    ]


def makes_leaf(call: ast.Call) -> bool:
    """Return whether a call makes a leaf tensor that gets a gradient."""
    wanted = any(
        keyword.arg == "requires_grad" and getattr(keyword.value, "value", None) is True
        for keyword in call.keywords
    )
    return wanted or called(call) in ("requires_grad_", "Parameter")
