"""Several ranks: process groups, DistributedDataParallel and fully_shard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from gradgate.torch_compat._private import Private, torch

default_store: Private[[], Any] = Private(
    "torch.distributed.distributed_c10d._get_default_store",
    "tell which ranks missed an exchange that timed out",
    find=lambda: torch().distributed.distributed_c10d._get_default_store,
    instead=lambda: None,
)

reset_reducer: Private[[Any], None] = Private(
    "torch.distributed.Reducer._reset_state",
    "add gradients over ranks under DistributedDataParallel",
    find=lambda: lambda wrapper: wrapper.reducer._reset_state(),
    works=lambda _: hasattr(torch()._C._distributed_c10d.Reducer, "_reset_state"),
)

running_wrapper: Private[[], Any] = Private(
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module",
    "see that a module runs inside another DistributedDataParallel",
    find=lambda: torch().nn.parallel.DistributedDataParallel._get_active_ddp_module,
)

in_join: Private[[Any], bool] = Private(
    "torch.distributed.algorithms.Joinable._join_config",
    "see that DistributedDataParallel.join() is active",
    find=lambda: lambda wrapper: wrapper._join_config.enable,
    works=lambda _: hasattr(import_module("torch.distributed.algorithms.join"), "_JoinConfig"),
    instead=lambda wrapper: False,
)


def is_dtensor(value: Any) -> bool:
    """Return whether a tensor is a DTensor, sharded over ranks, without importing the class, which is slow."""
    return hasattr(value, "to_local")


def fully_sharded(modules: Sequence[Any]) -> list[Any]:
    """Return the modules that ``fully_shard`` has wrapped, without importing their class, which is slow."""
    kinds = {
        kind for kind in set(map(type, modules)) if any(b.__name__ == "FSDPModule" for b in kind.__mro__)
    }
    return [module for module in modules if type(module) in kinds] if kinds else []


def is_replicated(module: Any) -> bool:
    """Return whether the composable function ``replicate`` has wrapped a module."""
    return any(
        base.__name__ == "DDP" and base.__module__.startswith("torch.distributed._composable")
        for base in type(module).__mro__
    )


def _records(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch 2.11 has one group, or none
        groups = [group for group in (state._fsdp_param_group,) if group is not None]
    return [record for group in groups for record in group.fsdp_params]


# torch's records of the parameters of a module under fully_shard. While the module is gathered, module.parameters()
# does not yield the objects that the optimizer steps. Only these records refer to both.
fsdp_records: Private[[Any], list[Any]] = Private(
    "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
    "add gradients over ranks under fully_shard",
    find=lambda: _records,
    works=lambda _: hasattr(import_module("torch.distributed.fsdp").FSDPModule, "_get_fsdp_state"),
)

# The processes over which gradients are reduced. `sharded_param.device_mesh` may also have a dimension of tensor
# parallelism.
data_mesh: Private[[Any], Any] = Private(
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.mesh_info",
    "tell over which processes fully_shard reduces gradients",
    find=lambda: lambda record: record.mesh_info.mesh,
)

gathered_parameter: Private[[Any], Any] = Private(
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam._unsharded_param",
    "add gradients over ranks under fully_shard",
    find=lambda: (
        lambda record: getattr(record, "_unsharded_param", None)
    ),  # None before the first forward pass
)


def _forget_gathered(record: Any) -> None:
    record.all_gather_outputs = []
    vars(record).pop("_unsharded_param", None)


# A pass with fake tensors would otherwise leave a fake parameter, which torch keeps for all later passes.
forget_gathered: Private[[Any], None] = Private(
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.all_gather_outputs",
    "restore a module under fully_shard after gg.plan",
    find=lambda: _forget_gathered,
    instead=lambda record: None,
)


def reset_pass(module: Any) -> None:
    """Reset a root under ``fully_shard`` after a pass that raised. Gradients that are not reduced yet are lost."""
    inner = fully_sharded([*module.modules()])
    if all(gathered_parameter(record) is None for part in inner for record in fsdp_records(part)):
        return  # it never ran
    # torch raises if the module is not the root, or if another rank has died and no pass can run any more.
    with suppress(RuntimeError):
        if hasattr(module, "reset_iter_state"):  # torch 2.11 lacks it and needs no reset
            module.reset_iter_state()
