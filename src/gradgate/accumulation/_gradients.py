"""Works on the gradients of many parameters at once: separates, adds and scales them, and computes their norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.torch_compat import (
    is_dtensor,
    owns_memory,
)

_HALF, _FULL = frozenset({torch.float16, torch.bfloat16}), frozenset({torch.float32, torch.float64})
_dtype, _is_cpu = attrgetter("dtype"), attrgetter("is_cpu")
_scalar = lru_cache(maxsize=16)(partial(torch.full, (), device="cpu"))  # windows with equal counts share it


def separate(parameters: Iterable[Tensor]) -> None:
    """Give each gradient memory of its own, because sums are added to and multiplied in place.

    Autograd stores what a backward function returns, without a copy. Two gradients may then be views of one tensor,
    as those of ``a[None] + b[None]``, and what is done to both in place is done twice. A gradient may also be a
    view of a tensor that a custom function keeps.

    Gradients that autograd has already added to have been separated, so only new ones need this. Shards under
    ``fully_shard`` are parts of one tensor that do not overlap.
    """
    owns = owns_memory.use
    for parameter in parameters:
        gradient = parameter.grad
        if type(gradient) is Tensor and not owns(gradient):
            parameter.grad = gradient.clone()


def dense_values(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that hold the gradients' values, to be read or changed in place.

    A sparse gradient is coalesced first (its duplicate rows are added), which changes no value. For a sharded
    gradient, returns this rank's shard.
    """
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            if not gradient.is_coalesced():
                gradient = parameter.grad = gradient.coalesce()
            gradient = gradient.values()
        # The local shard shares the DTensor's memory.
        values.append(gradient if type(gradient) is Tensor else local_part(gradient))
    return values


def local_part(tensor: Any) -> Tensor:
    """Return this rank's shard of a sharded tensor, without copying; return other tensors unchanged."""
    shard: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return shard


def multiply(values: list[Tensor], factor: float | Tensor) -> None:
    """Multiply in place; do nothing if the factor is 1."""
    if not values:
        return  # torch refuses an empty list
    if not isinstance(factor, Tensor):
        if factor != 1:
            # On a CPU, torch would convert a number, or a tensor of another dtype, again for each gradient. The
            # last gradients come first, because the norm has just put them into the cache.
            dtype, *others = {*map(_dtype, values)}
            once = not others and dtype in _FULL and all(map(_is_cpu, values))
            torch._foreach_mul_(values[::-1], _scalar(factor, dtype=dtype) if once else factor)
        return
    for device, tensors in by_device(values).items():
        torch._foreach_mul_(tensors, factor.to(device))


def add(parameters: Sequence[Tensor], others: Sequence[Tensor | None], factor: float = 1.0) -> None:
    """Add ``factor * other`` to each ``.grad``. The others are not changed."""
    targets, terms = [], []
    for parameter, other in zip(parameters, others, strict=True):
        if other is None:
            continue
        if parameter.grad is None:
            parameter.grad = (other * factor).to(parameter.grad_dtype or parameter.dtype)
        elif parameter.grad.is_sparse or other.is_sparse:
            # torch adds a sparse tensor to a dense one, not the other way round.
            first, second = parameter.grad, other * factor
            parameter.grad = second + first if first.is_sparse else first + second
        else:
            targets.append(local_part(parameter.grad))
            terms.append(local_part(other))
    if targets:
        torch._foreach_add_(targets, terms, alpha=factor)


def by_device(tensors: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    """Return tensors grouped by device, in order."""
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return found


def total_norm(gradients: Sequence[Tensor], *, scaled: bool = False) -> float | Tensor:
    """Return the 2-norm of all gradients together; a tensor if reading it would synchronize.

    Each rank squares and adds its own shards. Ranks then exchange one number for each kind of sharding, that is for
    each mesh and the dimensions along which it splits gradients. The squares of these numbers add up.

    Args:
        gradients: dense tensors, sharded or not, in the same order on all ranks.
        scaled: whether to divide by the largest value before squaring, which may overflow. Synchronizes.
    """
    local_norm = _scaled_norm if scaled else _norm
    if {*map(type, gradients)} == {Tensor} or not any(map(is_dtensor, gradients)):
        return local_norm(gradients)
    kinds: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        kinds.setdefault(_sharding(gradient), []).append(local_part(gradient))
    return math.hypot(*(_over_ranks(float(local_norm(kinds[kind])), *kind) for kind in kinds))


def _sharding(gradient: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a gradient's mesh, and the mesh's dimensions along which ranks hold different parts of it."""
    if not is_dtensor(gradient):
        return None, ()
    places = enumerate(gradient.placements)
    return gradient.device_mesh, tuple(dim for dim, placement in places if not placement.is_replicate())


def _over_ranks(norm: float, mesh: Any, dims: tuple[int, ...]) -> float:
    """Return the norm of the parts that the processes along some dimensions of a mesh hold together."""
    for dim in dims:
        mine = torch.tensor([norm], dtype=torch.float64, device=mesh.device_type)
        norms = [torch.empty_like(mine) for _ in range(mesh.size(dim))]
        dist.all_gather(norms, mine, group=mesh.get_group(dim))
        norm = math.hypot(*torch.cat(norms).tolist())
    return norm


def _norm(values: Sequence[Tensor]) -> float | Tensor:
    """Return the norm of tensors of this process. 16-bit ones are squared in float32: float16 ends at 65504."""
    if not _HALF.isdisjoint(map(_dtype, values)):
        wide = [torch.promote_types(value.dtype, torch.float32) for value in values]
        pairs = zip(values, wide, strict=True)
        norms = [torch.linalg.vector_norm(value, dtype=dtype) for value, dtype in pairs]
    else:
        norms = list(torch._foreach_norm(list(values)))
    if all(map(_is_cpu, values)):
        return math.hypot(*map(Tensor.item, norms))
    first = norms[0]
    if any(norm.device != first.device or norm.dtype != first.dtype for norm in norms):
        norms = [norm.to(first.device, torch.float64) for norm in norms]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _scaled_norm(values: Sequence[Tensor]) -> float:
    filled = [value for value in values if value.numel()]
    if not filled:
        return 0.0
    largest = float(
        torch.stack([value.abs().max().double().cpu() for value in filled]).max()
    )  # nan if any is
    if not 0 < largest < math.inf:
        return largest
    # One tensor at a time: float64 copies of all gradients would take up to four times their memory.
    return largest * math.hypot(*(float((value.double().abs() / largest).norm()) for value in filled))
