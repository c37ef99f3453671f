"""What a loss function changes beside its result, in Python's objects: noted before a pass, put back after it."""

from __future__ import annotations

import functools
import itertools
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.torch_compat import storage_key

_LONG = 10_000  # items: no cache, a data set
_MOST_FUNCTIONS = 5_000  # a library's functions lead to all the others
_FOREIGN = {"torch", "numpy", "builtins", "gradgate", *sys.stdlib_module_names} - {"__main__"}
_HOLDERS = {"argparse", "collections", "types", "weakref"}  # whose objects keep what they are given
_CONTAINERS: tuple[tuple[type, str], ...] = (  # and the method that fills it again
    (OrderedDict, "update"),
    (dict, "update"),
    (list, "extend"),
    (set, "update"),
    (deque, "extend"),
)
_KINDS = tuple(kind for kind, _ in _CONTAINERS)
_MISSING = object()


class Surroundings:
    """The objects to which a loss function leads, as they were when each was first noted.

    Followed are closures, defaults, the global names that functions use, attributes, items of containers, and
    modules with all their parts. Noted are what names, attributes and items they hold; which data and gradients
    tensors have, not their values (:class:`Follower` copies what an operation writes); and the state of generators.
    """

    def __init__(self, *roots: Any) -> None:
        self._noted: dict[int, Any] = {}
        self._containers: list[tuple[Any, Sequence[Any]]] = []
        self._undo: list[Callable[[], None]] = []
        self._functions = 0
        self.note(*roots)

    def note(self, *roots: Any) -> None:
        """Note objects, and what they lead to, unless they are noted already."""
        todo = deque(roots)
        while todo:
            value = todo.popleft()
            if id(value) in self._noted or isinstance(value, (str, bytes, int, float, complex, type(None))):
                continue
            self._noted[id(value)] = value
            todo.extend(self._parts(value))

    def restore(self) -> None:
        """Put everything back as it was noted."""
        with torch.no_grad():
            for undo in self._undo:
                undo()
        for value, items in self._containers:
            if len(value) != len(items) or (items and not all(map(_same, _items(value), items))):
                kind, fill = next(pair for pair in _CONTAINERS if isinstance(value, pair[0]))
                kind.clear(value)  # type: ignore[attr-defined]
                getattr(kind, fill)(value, items)

    def _parts(self, value: Any) -> Iterable[Any]:
        """Note one object; return what it leads to."""
        if isinstance(value, _KINDS):
            return self._container(value)
        if isinstance(value, Tensor):
            self._undo.append(functools.partial(_restore_tensor, *_tensor(value)))
        elif isinstance(value, (tuple, frozenset)):
            return value if len(value) < _LONG else ()
        elif isinstance(value, torch.Generator):
            self._undo.append(functools.partial(_restore_generator, value, value.get_state()))
        elif isinstance(value, (FunctionType, type)):
            if not _is_foreign(value.__module__) and self._functions < _MOST_FUNCTIONS:
                self._functions += 1
                return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        elif isinstance(value, MethodType):
            return (value.__self__, value.__func__)
        elif isinstance(value, functools.partial):
            return (value.func, value.args, value.keywords)
        elif not isinstance(value, ModuleType):
            return self._object(value)
        return ()

    def _container(self, value: Any) -> Iterable[Any]:
        if len(value) >= _LONG:
            return ()
        items = _items(value)
        self._containers.append((value, items))
        return itertools.chain.from_iterable(items) if isinstance(value, dict) else items

    def _object(self, value: Any) -> Iterator[Any]:
        wrapped = getattr(value, "__wrapped__", None)  # functools.lru_cache
        if isinstance(wrapped, FunctionType):
            yield wrapped
        kind = type(value)
        foreign = _is_foreign(kind.__module__) and kind.__module__ not in _HOLDERS
        if not hasattr(value, "__dict__") or (foreign and not isinstance(value, nn.Module)):
            return
        if isinstance(value, nn.Module):

            def undo() -> None:
                if type(value) is not kind:  # a lazy module has become another
                    value.__class__ = kind

            self._undo.append(undo)
        yield from (vars(value), kind)

    def _class(self, value: type) -> Iterator[Any]:
        before = {name: held for name, held in vars(value).items() if not name.startswith("__")}

        def undo() -> None:
            for name, held in list(vars(value).items()):
                if name in before and held is not before[name]:
                    setattr(value, name, before[name])
                elif name not in before and not name.startswith("__"):
                    delattr(value, name)

        self._undo.append(undo)
        yield from value.__bases__
        for held in (*before.values(), vars(value).get("__call__")):
            yield held.fget if isinstance(held, property) else getattr(held, "__func__", held)

    def _function(self, value: FunctionType) -> Iterator[Any]:
        yield from (value.__defaults__, value.__kwdefaults__, vars(value))
        for cell in value.__closure__ or ():
            yield from self._cell(cell)
        names = set(_names(value.__code__))
        used = self._names(value.__globals__, names)
        yield from used
        for module in used:
            if isinstance(module, ModuleType) and not _is_foreign(module.__name__):
                yield from self._names(vars(module), names)

    def _cell(self, cell: CellType) -> Iterator[Any]:
        try:
            held = cell.cell_contents
        except ValueError:  # empty
            return

        def undo() -> None:
            cell.cell_contents = held

        self._undo.append(undo)
        yield held

    def _names(self, space: dict[str, Any], names: set[str]) -> list[Any]:
        """Note what some names of a module hold; return it."""
        before = {name: space.get(name, _MISSING) for name in names}

        def undo() -> None:
            for name, value in before.items():
                if value is _MISSING:
                    space.pop(name, None)
                else:
                    space[name] = value

        self._undo.append(undo)
        return [value for value in before.values() if value is not _MISSING]


def _is_foreign(module: Any) -> bool:
    """Say whether what is defined there keeps nothing of the user's."""
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, OrderedDict):
        return tuple(OrderedDict.items(value))  # those of dict have the order in which they came
    return tuple(dict.items(value) if isinstance(value, dict) else value)


def _same(now: Any, before: Any) -> bool:
    if type(now) is tuple and type(before) is tuple and len(now) == len(before):
        return all(a is b for a, b in zip(now, before, strict=True))
    return now is before


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _restore_generator(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    if is_lazy(tensor):
        return tensor, type(tensor), torch.empty(0, dtype=tensor.dtype, device=tensor.device), None
    ordinary = type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
    return tensor, type(tensor), tensor.data if ordinary else None, tensor.grad if tensor.is_leaf else None


def _restore_tensor(tensor: Tensor, kind: type, data: Tensor | None, grad: Tensor | None) -> None:
    if is_lazy(tensor):  # as it was: nothing makes a parameter lazy
        return
    if data is not None and (
        storage_key(data.untyped_storage()) != storage_key(tensor.untyped_storage())
        or data.shape != tensor.shape
        or data.stride() != tensor.stride()
    ):
        tensor.data = data
    if type(tensor) is not kind:  # a lazy parameter was given a shape
        tensor.__class__ = kind
    if tensor.is_leaf and tensor.grad is not grad:
        tensor.grad = grad
