"""Finds the line to change, such as one that computes a learning rate or builds a list of parameters."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from gradgate.checker.analysis._gradient_modes import requires_grad
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    functions,
    last_name,
    part_of,
    returned,
    scope_at,
)
from gradgate.checker.analysis._source import inside, nodes_of, statement_at
from gradgate.events import Frame, Site


def list_line(site: Site, files: Iterable[str] = ()) -> Frame | None:
    """Return the line that builds an optimizer's list, if the list has a name or a function returns it."""
    scope = scope_at(site[0]) if site else None
    for call in reversed(_calls_at(site)):
        value = call.args[0] if call.args and called(call)[:1].isupper() else None
        if scope is not None and (found := _built_at(scope, value, files or (scope.file,))) is not None:
            return found
    return None


def _calls_at(site: Site) -> list[ast.Call]:
    return inside(ast.Call, statement_at(site[0])) if site else []


def _built_at(
    scope: Scope, value: ast.expr | None, files: Iterable[str], place: int | None = None
) -> Frame | None:
    """Follow a name, or the result of a user's function, to the line that builds it."""
    if isinstance(value, ast.Name):
        for definition in definitions(scope).get(value.id, ())[:1]:
            inner = _built_at(scope, definition.value, files, definition.place)
            return inner or _in(scope, definition.value.lineno)
    elif isinstance(value, ast.Call) and place is not None:
        for function in functions(called(value), files)[:1]:
            parts = [part_of(each, place)[0] for each in returned(function)[:1]]
            return _built_at(function, parts[0], files) if parts and isinstance(parts[0], ast.Name) else None
    return None


def _in(scope: Scope, line: int) -> Frame:
    return Frame(scope.file, line, getattr(scope.node, "name", "<module>"))


def unfreezing_line(files: Iterable[str], names: Collection[str]) -> Frame | None:
    """Return the shortest statement that may set ``requires_grad`` to True and contains one of these names.

    The statement sets ``requires_grad``, or calls a function that sets it. One with the constant True is preferred.
    """
    files = tuple(files)
    found = [
        (not any(map(_is_true, values)), (node.end_lineno or 0) - node.lineno, Frame(file, node.lineno, ""))
        for file in files
        for node in nodes_of([file])
        if isinstance(node, (ast.Expr, ast.Assign, ast.For)) and (values := _made_trainable(node, files))
        if any(last_name(each) in names for each in ast.walk(node))
    ]
    return min(found, key=lambda each: each[:2])[2] if found else None


def _is_true(value: ast.expr) -> bool:
    return getattr(value, "value", None) is True


def _made_trainable(statement: ast.AST, files: tuple[str, ...]) -> list[ast.expr]:
    """Return what a statement, or a function that it calls, assigns to ``requires_grad``, except False."""
    found: list[ast.expr] = []
    for node in ast.walk(statement):
        value = requires_grad(node)
        given = [value] if value is not None else []
        if value is None and isinstance(node, ast.Call):
            sets = any(_made_trainable(scope.node, ()) for scope in functions(called(node), files))
            given = [*node.args, *(keyword.value for keyword in node.keywords)] if sets else []
        if not any(getattr(value, "value", None) is False for value in given):
            found += given
    return found
