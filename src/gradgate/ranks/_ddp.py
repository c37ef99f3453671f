"""Keeps DistributedDataParallel from synchronizing gradients while a window is open."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradgate.errors import RankError
from gradgate.torch_compat import is_replicated

# For each suspended wrapper: the number of open windows that suspend it, and whether it synchronized gradients and
# buffers before.
_holds: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[int, bool, bool]] = (
    weakref.WeakKeyDictionary()
)


def hold_wrapper(wrapper: DistributedDataParallel) -> None:
    """Keep a wrapper from communicating until :func:`release_wrapper` was called as often as this function."""
    found = wrapper.require_backward_grad_sync, wrapper.require_forward_param_sync
    windows, gradients, buffers = _holds.get(wrapper, (0, *found))
    _holds[wrapper] = windows + 1, gradients, buffers
    wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = False


def release_wrapper(wrapper: DistributedDataParallel) -> None:
    """Let a wrapper communicate as before, unless another window still suspends it."""
    windows, gradients, buffers = _holds.pop(wrapper)
    if windows > 1:
        _holds[wrapper] = windows - 1, gradients, buffers
    else:
        wrapper.require_backward_grad_sync, wrapper.require_forward_param_sync = gradients, buffers


def wrappers_in(modules: Sequence[nn.Module]) -> list[DistributedDataParallel]:
    """Return the wrappers among the modules, each once."""
    kinds = {kind for kind in set(map(type, modules)) if issubclass(kind, DistributedDataParallel)}
    if not kinds:  # usual, and called for each window
        return []
    return list(dict.fromkeys(cast(Any, module) for module in modules if type(module) in kinds))


def check_wrappers(modules: Sequence[nn.Module], *, suspended: bool = False) -> None:
    """Raise RankError if a wrapper reduces gradients in a way that a window cannot turn off.

    Args:
        modules: the modules of an accumulator.
        suspended: whether windows suspend each DistributedDataParallel.
    """
    if suspended and any(wrapper.static_graph for wrapper in wrappers_in(modules)):
        raise RankError(
            "update: DistributedDataParallel was made with static_graph=True, so its synchronization "
            "cannot be turned off within a window. Leave static_graph out."
        )
    if dist.get_world_size() == 1:
        return
    if any(kind.__name__ == "FullyShardedDataParallel" for kind in set(map(type, modules))):
        raise RankError("update: FullyShardedDataParallel (FSDP1) is not supported. Use fully_shard or DDP.")
    if any(map(is_replicated, modules)):
        raise RankError(REPLICATED)


REPLICATED = (
    "update: the composable function replicate is not supported: it averages gradients at each backward pass, and "
    "has no wrapper that could be turned off. Wrap the model in DistributedDataParallel, or use fully_shard."
)
