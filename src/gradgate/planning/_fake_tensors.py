"""The fake tensors of a plan: how they are made, and how to get rid of those that outlive their passes."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Sequence
from types import FrameType, FunctionType, GeneratorType
from typing import Any

from torch import Tensor

from gradgate.torch_compat import fake_tensors

_LEVELS = 4  # of containers between a cache and a tensor in it
_LRU_CACHE = type(functools.lru_cache(len))


class FakePassError(Exception):
    """Fake tensors cannot run this; the text says why."""


class FakeTensors:
    """Makes fake tensors, which have shapes and no values, for real ones.

    It keeps them, since the mode holds them weakly: a fake that is made anew would count as a new storage.
    """

    def __init__(self) -> None:
        self.kind, mode = fake_tensors()
        self.mode = mode(allow_non_fake_inputs=True)
        self.created: list[weakref.ref[Tensor]] = []
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the fake of a real tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self.mode.from_tensor(tensor)
        return self._known[id(tensor)][1]

    def of_input(self, tensor: Tensor) -> Tensor:
        """Return a fake for a tensor of a micro-batch; it is not kept. 0-dimensional tensors stay as they are."""
        if not tensor.dim():
            return tensor
        fake: Tensor = tensor if isinstance(tensor, self.kind) else self.mode.from_tensor(tensor)
        self.created.append(weakref.ref(fake))
        return fake

    def leaked(self) -> list[Tensor]:
        """Return the fakes that are still held although their passes are over."""
        if self._alive():
            gc.collect()  # graphs of Python autograd functions can be in reference cycles
        alive = self._alive()
        self.created = [weakref.ref(tensor) for tensor in alive]
        return alive

    def _alive(self) -> list[Tensor]:
        kept = {id(fake) for _, fake in self._known.values()}
        return [tensor for ref in self.created if (tensor := ref()) is not None and id(tensor) not in kept]


def clear_caches(tensors: Sequence[Tensor]) -> None:
    """Clear each ``functools.lru_cache`` that holds one of the tensors: it computes them again."""
    ours, level = {id(tensors)}, list(tensors)
    for _ in range(_LEVELS):
        ours |= {id(level), *map(id, level)}
        level = [holder for holder in _referrers(level, ours) if not _is_module_namespace(holder)]
        for holder in level:
            if isinstance(holder, _LRU_CACHE):
                holder.cache_clear()
        if not level:
            return


def holder_name(value: Any, ours: set[int]) -> str:
    """Return the path to an object from the nearest module, class or instance: ``"masks.CACHE[128]"``.

    It must not hold the object in a local list or a closure, which would be found.
    """
    path = ""
    for _ in range(_LEVELS):
        ours = ours | {id(value)}
        referrers = _referrers([value], ours)
        holder = min(referrers, key=lambda each: not isinstance(each, (dict, list, tuple, set)), default=None)
        del referrers
        if not isinstance(holder, (dict, list, tuple, set)):
            return f"{'an object' if holder is None else f'a {type(holder).__qualname__}'}{path}"
        key = _key_of(value, holder)
        if _is_module_namespace(holder):
            return f"{holder['__name__']}.{key}{path}"  # type: ignore[index,call-overload]
        owner = next(
            (each for each in gc.get_referrers(holder) if getattr(each, "__dict__", 0) is holder), None
        )
        if owner is not None:
            return f"a {type(owner).__qualname__}'s {key}{path}"
        path, value = f"[{key!r}]{path}", holder
    return f"a {type(value).__qualname__}{path}"


def _referrers(values: Sequence[Any], ours: set[int]) -> list[Any]:
    found = gc.get_referrers(*values)
    skipped = ours | {id(found), id(values)}
    running = (FrameType, FunctionType, GeneratorType)
    return [each for each in found if id(each) not in skipped and not isinstance(each, running)]


def _key_of(value: Any, holder: Any) -> Any:
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return next((key for key, held in pairs if held is value), "?")


def _is_module_namespace(value: Any) -> bool:
    name = value.get("__name__") if isinstance(value, dict) else None
    return isinstance(name, str) and name in sys.modules and vars(sys.modules[name]) is value
