"""The norm of all gradients together, in one process or sharded over several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.accumulation._gradients import local_part
from gradgate.torch_compat import foreach_norm, is_dtensor

_HALF = frozenset({torch.float16, torch.bfloat16})
_dtype, _is_cpu = attrgetter("dtype"), attrgetter("is_cpu")


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
        norms = foreach_norm.use(values)
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
