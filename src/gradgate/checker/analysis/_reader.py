"""Through which expressions a gradient flows: values read forwards from the source.

An expression is *live* where a gradient may flow through it. What is not live may have been cut: its ``cuts`` are
the lines where that happened. What cannot be told counts as live, so that nothing is said about it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from gradgate.checker.analysis._calls import Calls
from gradgate.checker.analysis._scopes import (
    Definition,
    Function,
    Scope,
    argument,
    called,
    definitions,
    parameters_of,
    part_of,
    scope_at,
    scopes_of,
    without_gradients,
)
from gradgate.checker.analysis._source import path_to, tree_of
from gradgate.checker.analysis._value import LIVE, PLAIN, Place, Value, cut_at, is_self
from gradgate.events import Frame

_FIXED = frozenset(("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad"))
_CALLED = ("forward", "__call__")  # by a call of the object
_DEPTH = 12
_MOST = 20_000  # expressions that are evaluated


class Reader:
    """Evaluates expressions of the files of a run, in which modules of some names are trained."""

    def __init__(self, files: Iterable[str], trained: Iterable[str] = ()) -> None:
        self.files = tuple(files)
        self._calls = Calls(self, frozenset(trained))
        self._open: set[tuple[int, str]] = set()
        self._left = _MOST

    def given(self, call: ast.Call, function: ast.AST, place: Place) -> dict[str, Value]:
        """Return what a call gives each of a function's arguments."""
        return self._calls.given(call, function, place)

    def value(self, node: ast.AST | None, place: Place) -> Value:
        """Say whether an expression is live."""
        if node is None or isinstance(node, (ast.Constant, ast.JoinedStr)):
            return PLAIN
        if isinstance(node, ast.Compare):
            value = self.value(node.left, place) | self.value(node.comparators[0], place)
            return Value(False, (*value.cuts, cut_at(node, place))) if value.live else value
        self._left -= 1
        if place.depth > _DEPTH or self._left < 0:
            return LIVE
        if isinstance(node, ast.Name):
            return self._name(node, place)
        if isinstance(node, ast.Call):
            return self._calls.value(node, place)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, place)
        if isinstance(node, ast.Subscript):
            value = self.value(node.value, place)
            index = self.value(node.slice, place)
            return value if value.live else value | Value(False, index.cuts)
        if isinstance(node, ast.IfExp):
            return self.value(node.body, place) | self.value(node.orelse, place)
        if isinstance(node, ast.Lambda):
            return LIVE
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self.value(node.elt, self._inside(node.generators, place))
        if isinstance(node, ast.DictComp):
            return self.value(node.value, self._inside(node.generators, place))
        found = PLAIN
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                found |= self.value(inner, place)
        return found

    def _inside(self, generators: Iterable[ast.comprehension], place: Place) -> Place:
        """Return the place of a comprehension's element, whose names are given what is gone through."""
        for one in generators:
            targets = one.target.elts if isinstance(one.target, ast.Tuple) else [one.target]
            given = dict(place.given)
            for number, target in enumerate(targets):
                part = part_of(one.iter, number)[0] if len(targets) > 1 else one.iter
                if isinstance(target, ast.Name):
                    given[target.id] = self.value(part, place)
            place = Place(place.scope, given, place.callers, place.depth)
        return place

    def _name(self, node: ast.Name, place: Place) -> Value:
        if node.id in place.given:
            return place.given[node.id]
        key = (id(place.scope.node), node.id)
        if key in self._open:  # a sum that adds to itself
            return PLAIN
        self._open.add(key)
        try:
            found = definitions(place.scope).get(node.id, ())
            if found:
                return self._defined(found, place)
            outer = tree_of(place.scope.file)
            if isinstance(place.scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node.id in parameters_of(place.scope.node):
                    return self._given_by_caller(place, place.scope.node, node.id)
                if outer is not None:
                    return self.value(node, Place(Scope(place.scope.file, outer), {}, (), place.depth + 1))
            return PLAIN
        finally:
            self._open.discard(key)

    def _defined(self, found: Iterable[Definition], place: Place) -> Value:
        value = PLAIN
        for one in found:
            line = _switched_off(one.statement, place.scope)
            if line is None:
                value |= self._unpacked(one, place)
                continue
            inner = self._unpacked(one, replace(place, off=True))
            value |= Value(False, (*inner.cuts, line)) if inner.live else inner
        return value

    def _unpacked(self, one: Definition, place: Place) -> Value:
        if one.place is None:
            return self.value(one.value, place)
        if isinstance(one.value, ast.Tuple) and one.place < len(one.value.elts):
            return self.value(one.value.elts[one.place], place)
        return (
            self._calls.value(one.value, place, one.place)
            if isinstance(one.value, ast.Call)
            else self.value(one.value, place)
        )

    def _given_by_caller(self, place: Place, function: Function, name: str) -> Value:
        path = path_to(place.callers[0].file, place.callers[0].line) if place.callers else ()
        scope = scope_at(place.callers[0]) if place.callers else None
        if scope is None or len(path) < 2:
            return LIVE
        number = parameters_of(function).index(name)
        for node in ast.walk(path[-1]):
            if isinstance(node, ast.Call) and (called(node) == function.name or function.name in _CALLED):
                given = argument(node, number, name)
                if given is not None and not isinstance(given, ast.Starred):
                    return self.value(given, Place(scope, {}, place.callers[1:], place.depth + 1))
                if function.name not in _CALLED and not _spreads(node):
                    return PLAIN  # a default
        return LIVE

    def _attribute(self, node: ast.Attribute, place: Place) -> Value:
        if node.attr in _FIXED:
            return PLAIN
        value = self.value(node.value, place) if not is_self(node.value) else PLAIN
        if node.attr == "data":
            return Value(False, (*value.cuts, cut_at(node, place))) if value.live else value
        if value.live or value.cuts:
            return value
        made = [
            one.value
            for file in self.files
            for scope in scopes_of(file)
            for one in definitions(scope).get("." + node.attr, ())
        ]
        return LIVE if any(isinstance(inner, ast.Call) for one in made for inner in ast.walk(one)) else PLAIN


def _switched_off(statement: ast.AST, scope: Scope) -> Frame | None:
    for node in path_to(scope.file, getattr(statement, "lineno", 0)):
        line = without_gradients(node) if isinstance(node, (ast.With, ast.AsyncWith)) else None
        if line is not None:
            return Frame(scope.file, line, getattr(scope.node, "name", "<module>"))
    return None


def _spreads(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in call.args) or any(
        one.arg is None for one in call.keywords
    )
