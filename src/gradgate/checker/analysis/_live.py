"""Which part of a sum carries no gradient, and the line that took it away."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._reader import Reader
from gradgate.checker.analysis._scopes import (
    called,
    definitions,
    functions,
    key_of,
    own_nodes,
    returned,
    scope_at,
    statements_at,
)
from gradgate.checker.analysis._value import Place, Value
from gradgate.events import Site

_JOINING = ("sum", "stack", "cat", "mean")


def dead_parts(reader: Reader, site: Site) -> Iterator[tuple[ast.expr, Value]]:
    """Yield the summands at a line through which no gradient flows because it was cut before."""
    scope = scope_at(site[0]) if site else None
    if scope is None:
        return
    place = Place(scope, {}, site[1:])
    sums = [part for statement in statements_at(site[0]) for part in _sums(statement)]
    parts = [one for part in sums for one in _listed(reader, part, place)]
    for where, part in parts:
        value = reader.value(part, where)
        if not value.live and value.cuts and not _straight_through(part, [one for _, one in parts]):
            yield part, value


def _listed(reader: Reader, part: ast.expr, place: Place) -> list[tuple[Place, ast.expr]]:
    """Return a summand; of a list or dict that is summed, all that was put into it, also by a function."""
    if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "values":
        part = part.func.value
    inside: list[tuple[Place, ast.expr]] = []
    for one in definitions(place.scope).get(key_of(part), ()) if isinstance(part, ast.Name) else ():
        if not one.whole and isinstance(one.statement, (ast.Expr, ast.Assign)):
            inside.append((place, one.value))
        elif isinstance(one.value, (ast.List, ast.Tuple)):
            inside += [(place, item) for item in one.value.elts]
        elif isinstance(one.value, ast.Dict):
            inside += [(place, item) for item in one.value.values]
        elif isinstance(one.value, ast.Call) and place.depth < 2:
            for scope in functions(called(one.value), reader.files):
                inner = Place(scope, reader.given(one.value, scope.node, place), (), place.depth + 1)
                inside += [pair for value in returned(scope) for pair in _listed(reader, value, inner)]
    return inside or [(place, part)]


def _sums(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield the summands of every sum in a statement."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub)):
        yield statement.value
    for node in own_nodes(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            yield from (side for side in (node.left, node.right))
        elif isinstance(node, ast.Call) and called(node) in _JOINING:
            for given in node.args[:1] or ([node.func.value] if isinstance(node.func, ast.Attribute) else []):
                yield from given.elts if isinstance(given, (ast.List, ast.Tuple)) else (given,)


def _straight_through(part: ast.expr, parts: Iterable[ast.expr]) -> bool:
    """Say whether a summand takes away what another adds: ``x + (q - x).detach()``."""
    own = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    inner = {id(node) for node in ast.walk(part)}
    others = {
        node.id for other in parts if other is not part and id(other) not in inner and part not in ast.walk(other)
        for node in ast.walk(other) if isinstance(node, ast.Name)
    }  # fmt: skip
    subtracts = any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) for node in ast.walk(part))
    return subtracts and bool(own & others)
