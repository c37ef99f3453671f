"""What comes out of a call, for a gradient: of a function of torch, of a library, of the user, of a module."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradgate.checker.analysis._scopes import (
    BUILTIN,
    Function,
    Scope,
    argument,
    called,
    definitions,
    functions,
    imported,
    key_of,
    parameters_of,
    part_of,
    returned,
    root_of,
    scopes_of,
    without_gradients,
)
from gradgate.checker.analysis._value import LIVE, PLAIN, Place, Value, cut_at, is_self
from gradgate.events import Frame

if TYPE_CHECKING:
    from gradgate.checker.analysis._reader import Reader

_CUTTING = frozenset(
    ("item", "detach", "detach_", "numpy", "tolist", "argmax", "argmin", "float", "int", "tensor", "long")
)
_SIZES = frozenset(("len", "size", "dim", "numel", "range", "isinstance", "type")) | frozenset(
    ("ones_like", "zeros_like", "rand_like", "randn_like")
)
_METHODS = frozenset(("sum", "mean", "to", "view", "reshape", "unsqueeze", "squeeze", "clamp")) | frozenset(
    ("abs", "get", "bool", "type_as", "parse_args", "values", "items", "cpu")
)


class Calls:
    """Evaluates calls for a reader, in whose files modules of some names are trained."""

    def __init__(self, reader: Reader, trained: frozenset[str]) -> None:
        self._reader = reader
        self._trained = trained
        self._running: list[Function] = []

    def value(self, call: ast.Call, place: Place, item: int | None = None) -> Value:
        """Say whether what a call returns is live, or one item of it."""
        name, root = called(call), _plain_root(call.func)
        library = root in imported(place.scope.file) or root in BUILTIN
        scopes = functions(name, self._reader.files)
        if name in _SIZES:
            return PLAIN
        arguments = PLAIN
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            arguments |= self._reader.value(given, place)
        receiver = self._receiver(call, place) if not library else PLAIN
        both = receiver | arguments
        if name in _CUTTING and not scopes and not (name == "float" and isinstance(call.func, ast.Attribute)):
            return Value(False, (*both.cuts, cut_at(call, place))) if both.live else both
        if name == "grad" and library:
            return self._differentiated(call, arguments, place)
        if scopes:
            return self._through(call, scopes, place, item)
        if library:
            leaves = root in ("np", "numpy") and arguments.live
            return Value(False, (*arguments.cuts, cut_at(call, place))) if leaves else arguments
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
        return LIVE if not place.off or both.live or key_of(call.func).lstrip(".") in self._trained else both

    def _receiver(self, call: ast.Call, place: Place) -> Value:
        """Evaluate what a method is called on; a module that is called is none."""
        if isinstance(call.func, ast.Attribute) and not is_self(call.func.value):
            return self._reader.value(call.func.value, place)
        return PLAIN

    def _differentiated(self, call: ast.Call, arguments: Value, place: Place) -> Value:
        kept = next((one.value for one in call.keywords if one.arg == "create_graph"), None)
        if kept is not None and not (isinstance(kept, ast.Constant) and not kept.value):
            return LIVE
        return Value(False, (cut_at(call, place),)) if arguments.live else PLAIN

    def _is_loss(self, call: ast.Call, place: Place) -> bool:
        """Say whether what is called is one of torch's losses, which have no parameters: ``mse = nn.MSELoss()``."""
        key = key_of(call.func)
        scopes = [place.scope, *(scope for file in self._reader.files for scope in scopes_of(file))]
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
            for scope in (
                *functions("forward", self._reader.files),
                *functions("__call__", self._reader.files),
            )
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and len(parameters_of(scope.node)) == len(call.args) + len(call.keywords)
        ]
        return fitting if len(fitting) == 1 else []

    def _through(self, call: ast.Call, scopes: list[Scope], place: Place, item: int | None) -> Value:
        found = PLAIN
        for scope in scopes:
            function = scope.node
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or function in self._running:
                return LIVE
            line = without_gradients(function)
            off = place.off or line is not None
            given = self.given(call, function, place)
            self._running.append(function)
            value = self._result(Place(scope, given, (), place.depth + 1, off), item)
            self._running.pop()
            if line is not None:
                live = value.live or any(one.live for one in given.values())
                value = Value(False, (Frame(scope.file, line, function.name),) if live else ())
            found |= value
        return found

    def _result(self, inner: Place, item: int | None) -> Value:
        value = PLAIN
        for one in returned(inner.scope):
            value |= self._reader.value(one if item is None else part_of(one, item)[0], inner)
        return value

    def given(self, call: ast.Call, function: ast.AST, place: Place) -> dict[str, Value]:
        """Return what a call gives each of a function's arguments."""
        names = (
            parameters_of(function) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        )
        return {
            name: self._reader.value(argument(call, number, name), place) for number, name in enumerate(names)
        }


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
