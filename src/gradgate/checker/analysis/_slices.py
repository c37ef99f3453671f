"""Finds the expressions from which a value is computed, by reading the source backwards. Nothing is executed.

Variables are resolved within one function, and functions by name within the files of the run. If a name has several
possible definitions, all of them count, so a rule must confirm with an event that a result is real.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator

from gradgate.checker.analysis._scopes import (
    Function,
    Scope,
    argument,
    called,
    definitions,
    functions,
    is_function,
    key_of,
    may_be_module,
    names_read,
    own_calls,
    parameters_of,
    part_of,
    reaching,
    returned,
    scope_at,
    scopes_of,
    statements_at,
    takes,
)
from gradgate.checker.analysis._source import inside, spans, text_of, tree_of
from gradgate.events import Frame, Site

_TORCHS = re.compile(r"(torch\.)?nn\.(\w+Loss|LSTM|GRU|RNN|MultiheadAttention)")
_MOST = 4000  # maximum number of expressions to visit


class Slice:
    """The expressions from which the roots may be computed. ``nodes`` lists them with their files.

    Args:
        roots: expressions to start from.
        files: the files of the run.
        ends: returns a line for each expression that is not followed further; ``ended`` collects these lines. If
            given, arguments of the user's own functions are followed only as far as the functions return them.
    """

    def __init__(
        self,
        roots: Iterable[tuple[Scope, ast.AST]],
        files: Iterable[str],
        ends: Callable[[str, ast.AST], Frame | None] | None = None,
    ) -> None:
        self.files = tuple(files)
        self.nodes: list[tuple[str, ast.AST]] = []
        self.ended: list[Frame] = []
        self.resolved: set[int] = set()  # ids of calls of which one returned value was followed
        self._ends = ends
        self._seen: set[tuple[int, int | None]] = set()
        self._todo: list[tuple[Scope, ast.AST, int | None]] = [(scope, root, None) for scope, root in roots]
        while self._todo and len(self.nodes) < _MOST:
            self._visit(*self._todo.pop())

    def holds(self, frame: Frame, name: str = "") -> bool:
        """Return whether the slice contains a line, and the line's ``.name`` if the line reads one."""
        inside = [node for file, node in self.nodes if file == frame.file and spans(node, frame.line)]
        if name and f".{name}" in text_of(frame):
            return any(isinstance(node, ast.Attribute) and node.attr == name for node in inside)
        return bool(inside)

    def _visit(self, scope: Scope, node: ast.AST, place: int | None) -> None:
        if (id(node), place) in self._seen:
            return
        self._seen.add((id(node), place))
        end = self._ends(scope.file, node) if self._ends is not None else None
        if end is not None:
            self.ended.append(end)
            return
        if isinstance(node, ast.expr):
            self.nodes.append((scope.file, node))
        resolved = False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._name(scope, node.id, getattr(node, "lineno", 0))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found = [self._define(each, f".{node.attr}") for each in self._scopes()]
            resolved = any(found) and isinstance(node.value, ast.Name)
        elif isinstance(node, ast.Call):
            resolved = self._call(scope, node, place)
        if resolved and place is not None:
            self.resolved.add(id(node))
        if not resolved or self._ends is None:
            self._todo += [
                (scope, inner, None)
                for inner in self._children(scope.file, node)
                if not is_function(inner) and not isinstance(inner, ast.ClassDef)
            ]

    def _children(self, file: str, node: ast.AST) -> list[ast.AST]:
        """Return the parts of an expression, except each ``for`` whose variable is in no part that is followed."""
        children = list(ast.iter_child_nodes(node))
        generators: list[ast.comprehension] = getattr(node, "generators", [])
        if self._ends is None or not generators:
            return children
        read: set[str] = set()
        todo = [child for child in children if child not in generators]
        for inner in todo:  # grows during the loop
            if self._ends(file, inner) is None:
                read |= {getattr(inner, "id", "")}
                todo += ast.iter_child_nodes(inner)
        for each in reversed(generators):
            if read.isdisjoint(name.id for name in inside(ast.Name, each.target)):
                children.remove(each)
            else:
                read |= names_read(each.iter)
        return children

    def _name(self, scope: Scope, name: str, line: int) -> None:
        found = self._define(scope, name, line)
        if is_function(scope.node) and name in parameters_of(scope.node):
            # ``x = x / 2`` reads the argument.
            if not found or any(name in names_read(each.value) for each in reaching(scope, name, line)):
                self._callers(scope.node, name)
        elif not found and (tree := tree_of(scope.file)) is not None:
            self._define(Scope(scope.file, tree), name)

    def _define(self, scope: Scope, key: str, line: int = 0) -> bool:
        """Follow the definitions of a name or an attribute that reach a line. Return whether there are any."""
        found = reaching(scope, key, line)
        self._todo += [(scope, definition.value, definition.place) for definition in found]
        return bool(found)

    def _scopes(self) -> Iterator[Scope]:
        return (scope for file in self.files for scope in scopes_of(file))

    def _call(self, scope: Scope, call: ast.Call, place: int | None) -> bool:
        """Follow the values that a call returns. Return whether it calls one of the user's own functions."""
        named = functions(called(call), self.files)
        scopes = named or self._forwards(scope.file, call)
        for inner in scopes:
            for value in returned(inner):
                part = value if place is None else part_of(value, place)[0]
                self._todo.append((inner, part, None))
        return bool(named) or any(takes(inner.node, call) for inner in scopes)

    def _forwards(self, file: str, call: ast.Call) -> list[Scope]:
        """Return the ``forward`` methods that a module call may run."""
        if not may_be_module(call, file, self.files) or not (call.args or call.keywords):
            return []
        if self._is_torchs(call):
            return []
        scopes = functions("forward", self.files) + functions("__call__", self.files)
        return [scope for scope in scopes if takes(scope.node, call)] or scopes

    def _is_torchs(self, call: ast.Call) -> bool:
        """Return whether the called name is only ever a loss, recurrent layer or attention layer of torch."""
        made = [
            each.value for scope in self._scopes() for each in definitions(scope).get(key_of(call.func), ())
        ]
        texts = [ast.unparse(each.func) if isinstance(each, ast.Call) else "" for each in made]
        return bool(texts) and all(_TORCHS.fullmatch(text) for text in texts)

    def _callers(self, function: Function, name: str) -> None:
        place = parameters_of(function).index(name)
        module = function.name in ("forward", "__call__")
        for scope in self._scopes():
            for call in own_calls(scope.node):
                runs = module and may_be_module(call, scope.file, self.files) and takes(function, call)
                given = argument(call, place, name) if runs or called(call) == function.name else None
                if called(call) == function.name:  # f(x, *outputs)
                    given = next(
                        (each for each in call.args[: place + 1] if isinstance(each, ast.Starred)), given
                    )
                if given is not None:
                    self._todo.append((scope, given, None))


@functools.lru_cache(maxsize=64)
def slice_at(site: Site, files: tuple[str, ...]) -> Slice:
    """Return the slice of the statements at a site: all expressions from which their values may be computed."""
    scope = scope_at(site[0]) if site else None
    roots = [(scope, statement) for statement in statements_at(site[0])] if scope is not None else []
    return Slice(roots, files)


def files_of(sites: Iterable[Site]) -> tuple[str, ...]:
    """Return the files that these sites name."""
    return tuple(dict.fromkeys(frame.file for site in sites for frame in site))
