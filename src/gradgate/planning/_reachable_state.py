"""Records the Python objects that a loss function can reach, and restores them after a pass."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.forward_state import undo_container
from gradgate.torch_compat import (
    forget_gathered,
    fsdp_records,
    fully_sharded,
    gathered_parameter,
    reset_pass,
    storage_key,
)

_DATA_SET = 10_000  # items: a container this long is a data set rather than a cache
_MOST_FUNCTIONS = 5_000  # a limit, because a library's functions reference all of its other functions
_FOREIGN = {"torch", "numpy", "builtins", "gradgate", *sys.stdlib_module_names} - {"__main__"}
_HOLDERS = {"argparse", "collections", "types", "weakref"}  # their objects may hold objects of the user
_LRU_CACHE = type(functools.lru_cache(len))
_MISSING = object()


class ReachableState:
    """The objects that a loss function can reach, in their state when they were first recorded.

    The search follows closures, defaults, the global names that functions use, attributes, items of containers, and
    modules with all their parts. It records the objects that names, attributes and items refer to, the storages and
    gradients of tensors, and the state of random generators. :class:`PassTracer` copies values before they are
    overwritten.
    """

    def __init__(self, *roots: Any) -> None:
        self._noted: dict[int, Any] = {}
        self._undo: list[Callable[[], object]] = []
        self._sharded: list[Any] = []  # modules under `fully_shard`
        self._functions = 0
        self.note(*roots)

    def note(self, *roots: Any) -> None:
        """Record objects that are not recorded yet, and all objects that they reference."""
        todo = deque(roots)
        while todo:
            value = todo.popleft()
            if id(value) in self._noted or isinstance(value, (str, bytes, int, float, complex, type(None))):
                continue
            self._noted[id(value)] = value
            todo.extend(self._note_one(value))

    def restore(self, *, raised: bool = False) -> None:
        """Restore everything to its recorded state. ``raised`` says whether the pass raised before its end."""
        with torch.no_grad():
            if raised:  # the next pass of `fully_shard` would reuse the parameters that this pass gathered
                for module in self._sharded:
                    reset_pass(module)
                    module.reshard()
            for undo in self._undo:
                undo()

    def gathers_over_ranks(self) -> bool:
        """Return whether passes gather parameters from several ranks, as under ``fully_shard``."""
        return bool(self._sharded) and torch.distributed.get_world_size() > 1

    def _note_one(self, value: Any) -> Iterable[Any]:
        """Record one object; return the objects that it references."""
        if isinstance(value, (dict, list, set, deque)):
            if len(value) >= _DATA_SET:
                return ()
            self._undo.append(undo_container(value))
            return [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else list(value)
        if isinstance(value, Tensor):
            self._undo.append(_tensor_restorer(value))
        elif isinstance(value, (tuple, frozenset)):
            return value if len(value) < _DATA_SET else ()
        elif isinstance(value, torch.Generator):
            self._undo.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, (FunctionType, type)):
            if not _is_foreign(value.__module__) and self._functions < _MOST_FUNCTIONS:
                self._functions += 1
                return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        elif isinstance(value, MethodType):
            return (value.__self__, value.__func__)
        elif isinstance(value, functools.partial):
            return (value.func, value.args, value.keywords)
        elif not isinstance(value, ModuleType):
            return self._instance(value)
        return ()

    def _instance(self, value: Any) -> Iterator[Any]:
        if isinstance(value, _LRU_CACHE):
            self._undo.append(_cache_clearer(value))
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):
            yield wrapped
        kind = type(value)
        foreign = _is_foreign(kind.__module__) and kind.__module__ not in _HOLDERS
        if not hasattr(value, "__dict__") or (foreign and not isinstance(value, nn.Module)):
            return
        if isinstance(value, nn.Module):
            self._undo.append(functools.partial(_set_class, value, kind))  # a lazy module changes its class
            if fully_sharded([value]):
                self._sharded.append(value)
                for record in fsdp_records(value):
                    if gathered_parameter(record) is None:  # the first pass gathers it
                        self._undo.append(functools.partial(forget_gathered, record))
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
            try:
                held = cell.cell_contents
            except ValueError:  # empty
                continue
            self._undo.append(functools.partial(setattr, cell, "cell_contents", held))
            yield held
        names = set(_names(value.__code__))
        used = self._globals(value.__globals__, names)
        yield from used
        for module in used:
            if isinstance(module, ModuleType) and not _is_foreign(module.__name__):
                yield from self._globals(vars(module), names)

    def _globals(self, namespace: dict[str, Any], names: set[str]) -> list[Any]:
        """Record the values of some global names of a Python module; return them."""
        before = {name: namespace.get(name, _MISSING) for name in names}

        def undo() -> None:
            for name, value in before.items():
                if value is _MISSING:
                    namespace.pop(name, None)
                else:
                    namespace[name] = value

        self._undo.append(undo)
        return [value for value in before.values() if value is not _MISSING]


def _is_foreign(module: Any) -> bool:
    """Return whether a Python module belongs to a library whose objects reference no user objects."""
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _cache_clearer(cached: Any) -> Callable[[], None]:
    misses = cached.cache_info().misses

    def undo() -> None:
        nonlocal misses
        if cached.cache_info().misses != misses:
            cached.cache_clear()  # a single entry cannot be removed
            misses = 0

    return undo


def _set_class(value: Any, kind: type) -> None:
    if type(value) is not kind:
        value.__class__ = kind


def _tensor_restorer(tensor: Tensor) -> Callable[[], None]:
    kind, grad = type(tensor), tensor.grad if tensor.is_leaf and not is_lazy(tensor) else None
    data = None
    if is_lazy(tensor):
        data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    elif kind in (Tensor, nn.Parameter, nn.Buffer):
        data = tensor.data

    def undo() -> None:
        if is_lazy(tensor):  # still lazy, so unchanged
            return
        if data is not None:
            same_storage = storage_key(data.untyped_storage()) == storage_key(tensor.untyped_storage())
            if not same_storage or (data.shape, data.stride()) != (tensor.shape, tensor.stride()):
                tensor.data = data
        _set_class(tensor, kind)  # a lazy parameter changes its class when it gets its shape
        if tensor.is_leaf and tensor.grad is not grad:
            tensor.grad = grad

    return undo
