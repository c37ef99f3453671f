"""Fake tensors that outlive the passes they were made in: clear the caches that hold them, name what else does."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Sequence
from types import FrameType, FunctionType, GeneratorType
from typing import Any

from torch import Tensor

_FAR = 4  # objects between a cache and a tensor in it
_SHOWN = 3
_LRU_CACHE = type(functools.lru_cache(len))
_RUNNING = (FrameType, FunctionType, GeneratorType)
_PLAIN = (dict, list, tuple, set)


def clear_caches(tensors: Sequence[Tensor]) -> None:
    """Clear each ``functools.lru_cache`` that holds one of the tensors: it computes them again."""
    ours, level = {id(tensors)}, list(tensors)
    for _ in range(_FAR):
        ours |= {id(level), *map(id, level)}
        level = [each for each in _referrers(level, ours) if not _is_namespace(each)]
        for each in level:
            if isinstance(each, _LRU_CACHE):
                each.cache_clear()
        if not level:
            return


def holders(tensors: Sequence[Tensor]) -> list[str]:
    """Return the names of what holds some tensors, as far as they can be told: ``"masks.CACHE[128]"``."""
    found = list(dict.fromkeys([_name(tensor, {id(tensors)}) for tensor in tensors]))
    return [*found[:_SHOWN], *(["..."] if len(found) > _SHOWN else [])]


def _name(value: Any, ours: set[int]) -> str:
    """Return the path to an object from the nearest module, class or instance that holds it."""
    path = ""
    for _ in range(_FAR):
        ours = ours | {id(value)}
        referrers = _referrers([value], ours)
        holder = min(referrers, key=lambda each: not isinstance(each, _PLAIN), default=None)
        del referrers
        if not isinstance(holder, _PLAIN):
            break
        key = _key(holder, value)
        if isinstance(holder, dict) and _is_namespace(holder):
            return f"{holder['__name__']}.{key}{path}"
        owner = next(
            (each for each in gc.get_referrers(holder) if getattr(each, "__dict__", 0) is holder), None
        )
        if owner is not None:
            return f"a {type(owner).__qualname__}'s {key}{path}"
        path, value = f"[{key!r}]{path}", holder
    return f"{'an object' if holder is None else f'a {type(holder).__qualname__}'}{path}"


def _referrers(values: Sequence[Any], ours: set[int]) -> list[Any]:
    found = gc.get_referrers(*values)
    skipped = ours | {id(found), id(values)}
    return [each for each in found if id(each) not in skipped and not isinstance(each, _RUNNING)]


def _is_namespace(value: Any) -> bool:
    """Say whether a dict holds the names of a Python module."""
    name = value.get("__name__") if isinstance(value, dict) else None
    return isinstance(name, str) and name in sys.modules and vars(sys.modules[name]) is value


def _key(holder: Any, value: Any) -> Any:
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return next((key for key, held in pairs if held is value), "?")
