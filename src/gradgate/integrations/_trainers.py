"""What the exact trainers share: they extend an object of their library, on one device or under DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def extend(instance: Any, subclass_of: Callable[[type[Any]], type[Any]]) -> Any:
    """Change an object's class to a subclass of the same name, at most once. Return the object."""
    kind = type(instance)
    if not hasattr(kind, "gradgate_extends"):
        extended = subclass_of(kind)
        extended.gradgate_extends = kind
        extended.__name__, extended.__qualname__ = kind.__name__, kind.__qualname__
        extended.__module__ = kind.__module__
        instance.__class__ = extended
    return instance


def restore(instance: Any) -> None:
    """Undo :func:`extend`. Does nothing to an object that was not extended."""
    instance.__class__ = getattr(type(instance), "gradgate_extends", type(instance))


def sharding_of(accelerator: Any) -> str:
    """Return how an ``Accelerator`` divides a model or samples among processes; empty for one device or DDP."""
    how: str = accelerator.distributed_type.name
    if how != "NO" and not how.startswith("MULTI_"):
        return how
    parallel = getattr(accelerator, "parallelism_config", None)
    sizes = (f"{kind}_size={getattr(parallel, f'{kind}_size', 1)}" for kind in ("dp_shard", "tp", "cp", "sp"))
    return ", ".join(size for size in sizes if not size.endswith("=1"))
