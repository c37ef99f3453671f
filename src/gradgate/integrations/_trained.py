"""What a trainer trains, and how it divides this among processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def sharding_of(accelerator: Any) -> str:
    """Return how an ``Accelerator`` divides a model or samples among processes; empty for one device and DDP."""
    how: str = accelerator.distributed_type.name
    if how != "NO" and not how.startswith("MULTI_"):
        return how
    parallel = getattr(accelerator, "parallelism_config", None)
    sizes = (f"{kind}_size={getattr(parallel, f'{kind}_size', 1)}" for kind in ("dp_shard", "tp", "cp", "sp"))
    return ", ".join(size for size in sizes if not size.endswith("=1"))


def parameters_of(*groups: Iterable[T]) -> list[T]:
    """Return each parameter once."""
    return list({id(parameter): parameter for group in groups for parameter in group}.values())
