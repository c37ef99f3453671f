"""What a value is made of: its definitions, read backwards from the source. Nothing is executed.

Names are resolved within one function, functions by name within the files of the run. What cannot be resolved is
taken to be made of everything it might be made of: what is found here has to be confirmed by an event.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._scopes import (
    Function,
    Scope,
    argument,
    called,
    definitions,
    functions,
    may_be_module,
    own_nodes,
    parameters_of,
    part_of,
    returned,
    scope_at,
    scopes_of,
    statements_at,
    takes,
)
from gradgate.checker.analysis._source import text_of, tree_of
from gradgate.events import Frame, Site

_MOST = 4000  # expressions that are visited


class Slice:
    """All that a statement's values may be made of. ``nodes`` are expressions with the file they stand in."""

    def __init__(self, site: Site, files: Iterable[str]) -> None:
        self.files = tuple(files)
        self.nodes: list[tuple[str, ast.AST]] = []
        self._seen: set[tuple[int, int | None]] = set()
        self._todo: list[tuple[Scope, ast.AST, int | None]] = []
        for frame in site[:1]:
            scope = scope_at(frame)
            if scope is not None:
                self._todo += [(scope, statement, None) for statement in statements_at(frame)]
        while self._todo and len(self.nodes) < _MOST:
            self._visit(*self._todo.pop())

    def holds(self, frame: Frame, name: str = "") -> bool:
        """Say whether a line is part of it; of a name that is written there, such as "item", whether that is."""
        inside = [
            node
            for file, node in self.nodes
            if file == frame.file
            and getattr(node, "lineno", 0) <= frame.line <= (getattr(node, "end_lineno", 0) or 0)
        ]
        if name and f".{name}" in text_of(frame):
            return any(isinstance(node, ast.Attribute) and node.attr == name for node in inside)
        return bool(inside)

    def _visit(self, scope: Scope, root: ast.AST, place: int | None) -> None:
        for node in (root, *own_nodes(root)):
            if (id(node), place) in self._seen:
                continue
            self._seen.add((id(node), place if node is root else None))
            if isinstance(node, ast.expr):
                self.nodes.append((scope.file, node))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(scope, node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._attribute(node.attr)
            elif isinstance(node, ast.Call):
                self._call(scope, node, place if node is root else None)

    def _name(self, scope: Scope, name: str) -> None:
        found = definitions(scope).get(name, ())
        if not found and name in (
            parameters_of(scope.node)
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            else ()
        ):
            assert isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))  # noqa: S101
            self._callers(scope.node, name)
        elif not found:
            tree = tree_of(scope.file)
            if tree is not None and tree is not scope.node:
                scope = Scope(scope.file, tree)
                found = definitions(scope).get(name, ())
        self._todo += [(scope, one.value, one.place) for one in found]

    def _attribute(self, name: str) -> None:
        for scope in self._scopes():
            self._todo += [(scope, one.value, one.place) for one in definitions(scope).get("." + name, ())]

    def _scopes(self) -> Iterator[Scope]:
        return (scope for file in self.files for scope in scopes_of(file))

    def _call(self, scope: Scope, call: ast.Call, place: int | None) -> None:
        scopes = functions(called(call), self.files) or self._forwards(scope.file, call)
        for inner in scopes:
            for value in returned(inner):
                part = value if place is None else part_of(value, place)[0]
                self._todo.append((inner, part, None))

    def _forwards(self, file: str, call: ast.Call) -> list[Scope]:
        """Return the ``forward`` methods that a call of some module may run."""
        if not may_be_module(call, file) or not (call.args or call.keywords):
            return []
        scopes = functions("forward", self.files) + functions("__call__", self.files)
        return [scope for scope in scopes if takes(scope.node, call)] or scopes

    def _callers(self, function: Function, name: str) -> None:
        place = parameters_of(function).index(name)
        module = function.name in ("forward", "__call__")
        for scope in self._scopes():
            for node in own_nodes(scope.node):
                if not isinstance(node, ast.Call):
                    continue
                calls = may_be_module(node, scope.file) and takes(function, node) if module else None
                if calls or called(node) == function.name:
                    given = argument(node, place, name)
                    if given is not None:
                        self._todo.append((scope, given, None))


def files_of(sites: Iterable[Site]) -> tuple[str, ...]:
    """Return the files that stand in some sites."""
    return tuple(dict.fromkeys(frame.file for site in sites for frame in site))
