"""Which part of a sum carries no gradient, and the line that took it away: values read forwards from the source.

An expression is *live* where a gradient may flow through it. What is not live may have been cut: its ``cuts`` are
the lines where that happened. What cannot be told counts as live, so that nothing is said about it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gradgate.checks._scopes import (
    BUILTIN,
    Definition,
    Function,
    Scope,
    argument,
    called,
    definitions,
    functions,
    imported,
    key_of,
    own_nodes,
    parameters_of,
    part_of,
    returned,
    root_of,
    scope_at,
    scopes_of,
    statements_at,
    without_gradients,
)
from gradgate.checks._source import path_to, tree_of
from gradgate.events import Frame, Site

_CUTTING = frozenset(
    ("item", "detach", "detach_", "numpy", "tolist", "argmax", "argmin", "float", "int", "tensor", "long")
)
_FIXED = frozenset(("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad"))
_SIZES = frozenset(("len", "size", "dim", "numel", "range", "isinstance", "type")) | frozenset(
    ("ones_like", "zeros_like", "rand_like", "randn_like")
)
_METHODS = frozenset(("sum", "mean", "to", "view", "reshape", "unsqueeze", "squeeze", "clamp")) | frozenset(
    ("abs", "get", "bool", "type_as", "parse_args", "values", "items", "cpu")
)
_JOINING = ("sum", "stack", "cat", "mean")
_CALLED = ("forward", "__call__")  # by a call of the object
_DEPTH = 12
_MOST = 20_000  # expressions that are evaluated


@dataclass(frozen=True)
class Value:
    """What is known of an expression."""

    live: bool = False
    cuts: tuple[Frame, ...] = ()

    def __or__(self, other: Value) -> Value:
        return Value(self.live or other.live, (*self.cuts, *other.cuts))


_PLAIN = Value()
_LIVE = Value(live=True)


@dataclass(frozen=True)
class Place:
    """Where an expression stands: its function, what that was given, and the frames that called it."""

    scope: Scope
    given: Mapping[str, Value]
    callers: Site = ()
    depth: int = 0
    off: bool = False  # without gradients: only the modules of the run itself count as live


class Reader:
    """Evaluates expressions of the files of a run, in which modules of some names are trained."""

    def __init__(self, files: Iterable[str], trained: Iterable[str] = ()) -> None:
        self._files = tuple(files)
        self._trained = frozenset(trained)
        self._open: set[tuple[int, str]] = set()
        self._running: list[Function] = []
        self._left = _MOST

    def dead_parts(self, site: Site) -> Iterator[tuple[ast.expr, Value]]:
        """Yield the summands at a line through which no gradient flows because it was cut before."""
        scope = scope_at(site[0]) if site else None
        if scope is None:
            return
        place = Place(scope, {}, site[1:])
        sums = [part for statement in statements_at(site[0]) for part in _sums(statement)]
        parts = [one for part in sums for one in self._listed(part, place)]
        for where, part in parts:
            value = self.value(part, where)
            if not value.live and value.cuts and not _straight_through(part, [one for _, one in parts]):
                yield part, value

    def _listed(self, part: ast.expr, place: Place) -> list[tuple[Place, ast.expr]]:
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
                for scope in functions(called(one.value), self._files):
                    inner = Place(scope, self._given(one.value, scope.node, place), (), place.depth + 1)
                    inside += [pair for value in returned(scope) for pair in self._listed(value, inner)]
        return inside or [(place, part)]

    def _given(self, call: ast.Call, function: ast.AST, place: Place) -> dict[str, Value]:
        """Return what a call gives each of a function's arguments."""
        names = (
            parameters_of(function) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        )
        return {name: self.value(argument(call, number, name), place) for number, name in enumerate(names)}

    def value(self, node: ast.AST | None, place: Place) -> Value:
        """Say whether an expression is live."""
        if node is None or isinstance(node, (ast.Constant, ast.JoinedStr)):
            return _PLAIN
        if isinstance(node, ast.Compare):
            value = self.value(node.left, place) | self.value(node.comparators[0], place)
            return Value(False, (*value.cuts, _frame(node, place))) if value.live else value
        self._left -= 1
        if place.depth > _DEPTH or self._left < 0:
            return _LIVE
        if isinstance(node, ast.Name):
            return self._name(node, place)
        if isinstance(node, ast.Call):
            return self._called(node, place)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, place)
        if isinstance(node, ast.Subscript):
            value = self.value(node.value, place)
            index = self.value(node.slice, place)
            return value if value.live else value | Value(False, index.cuts)
        if isinstance(node, ast.IfExp):
            return self.value(node.body, place) | self.value(node.orelse, place)
        if isinstance(node, ast.Lambda):
            return _LIVE
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self.value(node.elt, self._inside(node.generators, place))
        if isinstance(node, ast.DictComp):
            return self.value(node.value, self._inside(node.generators, place))
        found = _PLAIN
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
            return _PLAIN
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
            return _PLAIN
        finally:
            self._open.discard(key)

    def _defined(self, found: Iterable[Definition], place: Place) -> Value:
        value = _PLAIN
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
            self._called(one.value, place, one.place)
            if isinstance(one.value, ast.Call)
            else self.value(one.value, place)
        )

    def _given_by_caller(self, place: Place, function: Function, name: str) -> Value:
        path = path_to(place.callers[0].file, place.callers[0].line) if place.callers else ()
        scope = scope_at(place.callers[0]) if place.callers else None
        if scope is None or len(path) < 2:
            return _LIVE
        number = parameters_of(function).index(name)
        for node in ast.walk(path[-1]):
            if isinstance(node, ast.Call) and (called(node) == function.name or function.name in _CALLED):
                given = argument(node, number, name)
                if given is not None and not isinstance(given, ast.Starred):
                    return self.value(given, Place(scope, {}, place.callers[1:], place.depth + 1))
                if function.name not in _CALLED and not _spreads(node):
                    return _PLAIN  # a default
        return _LIVE

    def _attribute(self, node: ast.Attribute, place: Place) -> Value:
        if node.attr in _FIXED:
            return _PLAIN
        value = self.value(node.value, place) if not _is_self(node.value) else _PLAIN
        if node.attr == "data":
            return Value(False, (*value.cuts, _frame(node, place))) if value.live else value
        if value.live or value.cuts:
            return value
        made = [
            one.value
            for file in self._files
            for scope in scopes_of(file)
            for one in definitions(scope).get("." + node.attr, ())
        ]
        return (
            _LIVE if any(isinstance(inner, ast.Call) for one in made for inner in ast.walk(one)) else _PLAIN
        )

    def _called(self, call: ast.Call, place: Place, item: int | None = None) -> Value:
        name, root = called(call), _plain_root(call.func)
        library = root in imported(place.scope.file) or root in BUILTIN
        scopes = functions(name, self._files)
        if name in _SIZES:
            return _PLAIN
        arguments = _PLAIN
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            arguments |= self.value(given, place)
        receiver = self._receiver(call, place) if not library else _PLAIN
        both = receiver | arguments
        if name in _CUTTING and not scopes and not (name == "float" and isinstance(call.func, ast.Attribute)):
            return Value(False, (*both.cuts, _frame(call, place))) if both.live else both
        if name == "grad" and library:
            return self._differentiated(call, arguments, place)
        if scopes:
            return self._through(call, scopes, place, item)
        if library:
            leaves = root in ("np", "numpy") and arguments.live
            return Value(False, (*arguments.cuts, _frame(call, place))) if leaves else arguments
        if (
            receiver.live
            or receiver.cuts
            or name in _METHODS
            or _of_result(call)
            or self._is_loss(call, place)
        ):
            return both
        forwards = self._forwards(call)
        if forwards:
            return self._through(call, forwards, place, item)
        return _LIVE if not place.off or both.live or key_of(call.func).lstrip(".") in self._trained else both

    def _receiver(self, call: ast.Call, place: Place) -> Value:
        """Evaluate what a method is called on; a module that is called is none."""
        if isinstance(call.func, ast.Attribute) and not _is_self(call.func.value):
            return self.value(call.func.value, place)
        return _PLAIN

    def _differentiated(self, call: ast.Call, arguments: Value, place: Place) -> Value:
        kept = next((one.value for one in call.keywords if one.arg == "create_graph"), None)
        if kept is not None and not (isinstance(kept, ast.Constant) and not kept.value):
            return _LIVE
        return Value(False, (_frame(call, place),)) if arguments.live else _PLAIN

    def _is_loss(self, call: ast.Call, place: Place) -> bool:
        """Say whether what is called is one of torch's losses, which have no parameters: ``mse = nn.MSELoss()``."""
        key = key_of(call.func)
        scopes = [place.scope, *(scope for file in self._files for scope in scopes_of(file))]
        return any(
            isinstance(one.value, ast.Call) and called(one.value).endswith("Loss")
            for scope in scopes
            for one in definitions(scope).get(key, ())
            if root_of(one.value) in imported(scope.file)
        )

    def _forwards(self, call: ast.Call) -> list[Scope]:
        """Return the one ``forward`` that fits a call of a module by the number of its arguments."""
        fitting = [
            scope
            for scope in (*functions("forward", self._files), *functions("__call__", self._files))
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and len(parameters_of(scope.node)) == len(call.args) + len(call.keywords)
        ]
        return fitting if len(fitting) == 1 else []

    def _through(self, call: ast.Call, scopes: list[Scope], place: Place, item: int | None) -> Value:
        found = _PLAIN
        for scope in scopes:
            function = scope.node
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or function in self._running:
                return _LIVE
            line = without_gradients(function)
            off = place.off or line is not None
            given = self._given(call, function, place)
            self._running.append(function)
            value = self._result(Place(scope, given, (), place.depth + 1, off), item)
            self._running.pop()
            if line is not None:
                live = value.live or any(one.live for one in given.values())
                value = Value(False, (Frame(scope.file, line, function.name),) if live else ())
            found |= value
        return found

    def _result(self, inner: Place, item: int | None) -> Value:
        value = _PLAIN
        for one in returned(inner.scope):
            value |= self.value(one if item is None else part_of(one, item)[0], inner)
        return value


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


def _switched_off(statement: ast.AST, scope: Scope) -> Frame | None:
    for node in path_to(scope.file, getattr(statement, "lineno", 0)):
        line = without_gradients(node) if isinstance(node, (ast.With, ast.AsyncWith)) else None
        if line is not None:
            return Frame(scope.file, line, getattr(scope.node, "name", "<module>"))
    return None


def _frame(node: ast.expr, place: Place) -> Frame:
    return Frame(place.scope.file, node.lineno, getattr(place.scope.node, "name", "<module>"))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _spreads(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in call.args) or any(
        one.arg is None for one in call.keywords
    )


def _of_result(call: ast.Call) -> bool:
    """Say whether a method of what another call returned is called: ``uniform(5).astype(float)``."""
    node = call.func
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(call.func, ast.Attribute) and isinstance(node, ast.Call)


def _plain_root(node: ast.AST) -> str:
    """Return the name that a dotted name begins with; of ``np.abs(x).mean`` none, as it is asked of a value."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
