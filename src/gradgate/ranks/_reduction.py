"""Reads from the wrappers of a model over which processes they reduce gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn

from gradgate.ranks._ddp import wrappers_in
from gradgate.torch_compat import data_mesh, fsdp_records, fully_sharded


@dataclass(frozen=True)
class Reduction:
    """A wrapper, and the processes over which it reduces the gradients of its parameters.

    Attributes:
        wrapper: a DistributedDataParallel, or a module under ``fully_shard``.
        processes: their ranks among all processes, in ascending order.
        group: their process group. None for the two dimensions of hybrid sharding, which have a group each.
    """

    wrapper: nn.Module
    processes: tuple[int, ...]
    group: dist.ProcessGroup | None


def reductions(parameters: Sequence[Tensor], modules: Sequence[nn.Module]) -> Iterator[Reduction]:
    """Yield the reductions of an accumulator's parameters by the wrappers among its modules."""
    owned = set(map(id, parameters))
    for wrapper in wrappers_in(modules):
        if not owned.isdisjoint(map(id, wrapper.parameters())):
            yield Reduction(wrapper, processes_of(wrapper.process_group), wrapper.process_group)
    for module in fully_sharded(modules):
        meshes = [data_mesh(record) for record in fsdp_records(module) if id(record.sharded_param) in owned]
        for mesh in {id(mesh): mesh for mesh in meshes}.values():
            group = mesh.get_group() if mesh.ndim == 1 else None
            yield Reduction(module, tuple(sorted(mesh.mesh.flatten().tolist())), group)


def processes_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """Return the ranks of a group's processes among all processes, in ascending order."""
    return tuple(sorted(dist.get_process_group_ranks(group)))


def group_of(reduction: Reduction) -> dist.ProcessGroup | None:
    """Return a group of the reduction's processes, which may create it together; None for all processes."""
    if len(reduction.processes) == dist.get_world_size():
        return None
    return reduction.group or dist.new_group(list(reduction.processes), use_local_synchronization=True)


def named(processes: Sequence[int]) -> str:
    """Return the numbers of processes as text."""
    if len(processes) == 1:
        return f"process {processes[0]}"
    shown = ", ".join(map(str, processes[:8]))
    return f"processes {shown}" + (f" and {len(processes) - 8} more" if len(processes) > 8 else "")
