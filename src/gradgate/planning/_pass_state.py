"""Records the Python objects that a loss function can reach, and restores them after a pass."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.forward_state import Snapshot, Undo, random_states
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
# Libraries whose objects reference no objects of the user, except these few.
_FOREIGN = {"torch", "numpy", "builtins", "gradgate", *sys.stdlib_module_names} - {"__main__"}
_HOLDERS = {"argparse", "collections", "types", "weakref"}
_LRU_CACHE = type(functools.lru_cache(len))
_MISSING = object()


class PassState:
    """The objects that a loss function can reach, and random generators, in their state when first recorded.

    The search follows closures, defaults, the global names that functions use, attributes, items of containers, and
    modules with all their parts. Of tensors, it records the storage and the gradient, not the values: a pass copies
    these before it overwrites them.
    """

    def __init__(self, loss_fn: Callable[[Any], Any]) -> None:
        self._random = random_states()
        self._sharded: list[nn.Module] = []  # under `fully_shard`
        self._functions = 0
        self._snapshot = Snapshot((), save=_save_reference, inside=self._inside, most_items=_DATA_SET)
        self.add(loss_fn)

    def add(self, value: Any) -> None:
        """Record an object and all objects that it references, unless they are recorded already."""
        self._snapshot.add([value])

    def restore(self, *, raised: bool = False) -> None:
        """Restore everything to its recorded state. ``raised`` says whether the pass raised before its end."""
        with torch.no_grad():
            if raised:  # the next pass of `fully_shard` would reuse the parameters that this pass gathered
                for module in self._sharded:
                    reset_pass(module)
                    module.reshard()  # type: ignore[operator]
            self._snapshot.restore()
        for undo in self._random:
            undo()

    def gathers_over_ranks(self) -> bool:
        """Return whether passes gather parameters from several ranks, as under ``fully_shard``."""
        return bool(self._sharded) and torch.distributed.get_world_size() > 1

    def _inside(self, snapshot: Snapshot, value: Any, name: str) -> list[tuple[Any, str]]:
        """Record a module or any other object, and return what it references."""
        return [(held, name) for held in self._referenced(snapshot, value)]

    def _referenced(self, snapshot: Snapshot, value: Any) -> Iterator[Any]:
        kind = type(value)
        if isinstance(value, (FunctionType, type)):
            if not _is_foreign(value.__module__) and self._functions < _MOST_FUNCTIONS:
                self._functions += 1
                if isinstance(value, FunctionType):
                    yield from _function(snapshot, value)
                else:
                    yield from _class(snapshot, value)
        elif isinstance(value, MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif not isinstance(value, ModuleType):
            if isinstance(value, _LRU_CACHE):
                snapshot.on_restore(_cache_clearer(value))
            wrapped = getattr(value, "__wrapped__", None)
            if isinstance(wrapped, FunctionType):
                yield wrapped
            if isinstance(value, nn.Module):
                self._module(snapshot, value)
            elif not hasattr(value, "__dict__") or (
                _is_foreign(kind.__module__) and kind.__module__ not in _HOLDERS
            ):
                return
            yield from (vars(value), kind)

    def _module(self, snapshot: Snapshot, module: nn.Module) -> None:
        snapshot.on_restore(partial(_set_class, module, type(module)))  # a lazy module changes its class
        if fully_sharded([module]):
            self._sharded.append(module)
            for record in fsdp_records(module):
                if gathered_parameter(record) is None:  # the first pass gathers it
                    snapshot.on_restore(partial(forget_gathered, record))


def _is_foreign(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def _class(snapshot: Snapshot, value: type) -> Iterator[Any]:
    before = {name: held for name, held in vars(value).items() if not name.startswith("__")}

    def undo() -> None:
        for name, held in list(vars(value).items()):
            if name in before and held is not before[name]:
                setattr(value, name, before[name])
            elif name not in before and not name.startswith("__"):
                delattr(value, name)

    snapshot.on_restore(undo)
    yield from value.__bases__
    for held in (*before.values(), vars(value).get("__call__")):
        yield held.fget if isinstance(held, property) else getattr(held, "__func__", held)


def _function(snapshot: Snapshot, value: FunctionType) -> Iterator[Any]:
    yield from (value.__defaults__, value.__kwdefaults__, vars(value))
    for cell in value.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # empty
            continue
        snapshot.on_restore(partial(setattr, cell, "cell_contents", held))
        yield held
    names = set(_names(value.__code__))
    used = _globals(snapshot, value.__globals__, names)
    yield from used
    for module in used:
        if isinstance(module, ModuleType) and not _is_foreign(module.__name__):
            yield from _globals(snapshot, vars(module), names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _globals(snapshot: Snapshot, namespace: dict[str, Any], names: set[str]) -> list[Any]:
    """Record the values of some global names of a Python module; return them."""
    before = {name: namespace.get(name, _MISSING) for name in names}

    def undo() -> None:
        for name, value in before.items():
            if value is _MISSING:
                namespace.pop(name, None)
            else:
                namespace[name] = value

    snapshot.on_restore(undo)
    return [value for value in before.values() if value is not _MISSING]


def _cache_clearer(cached: Any) -> Undo:
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


def _save_reference(tensor: Tensor, _: str) -> Undo:
    """Save a tensor's storage and gradient by reference. A lazy parameter becomes lazy again."""
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
