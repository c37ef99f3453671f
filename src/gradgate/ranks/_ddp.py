"""Keeps DistributedDataParallel from synchronizing gradients while a window is open."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradgate.errors import RankError
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._status_exchange import StatusExchange
from gradgate.tally import Count, power_of_two
from gradgate.torch_compat import (
    compiled_in_place,
    in_join,
    is_replicated,
    reset_reducer,
    running_wrapper,
)


class Replicated:
    """The policy for parameters of which each rank holds a copy, with or without DistributedDataParallel.

    By default, DistributedDataParallel averages gradients at every backward pass, although counts may differ
    between ranks. It also broadcasts buffers before every forward pass, so that ranks wait for a rank with fewer
    micro-batches. A window suspends both. When it ends, its sum is all-reduced once, and buffers are broadcast from
    rank 0, as in DDP.

    Args:
        group: the ranks that train together.
        parameters: the parameters that the accumulator owns.
        roots: the modules of ``model=``.
        modules: the roots and all their submodules.
        neighbours: the modules of other accumulators, whose wrappers may run in this accumulator's windows.
    """

    def __init__(
        self,
        group: RankGroup,
        parameters: Sequence[Tensor],
        roots: Sequence[nn.Module],
        modules: Sequence[nn.Module],
        neighbours: Sequence[nn.Module],
    ) -> None:
        self._group, self._parameters, self._roots = group, parameters, roots
        self._wrappers = wrappers_in(modules)
        self._known = wrappers_in([*self._wrappers, *neighbours])

    def unit_of(self, count: Count) -> Count:
        """Return a power of two, so that ranks convert between their units without rounding."""
        return power_of_two(count)

    def open(self, undo: ExitStack, closing: ExitStack) -> None:
        """Keep the wrappers from communicating until the window closes."""
        # An unknown wrapper may be in its forward pass, as Lightning's is in `training_step`.
        self._check_wrapper(self._roots[0] if self._roots else None)
        if any(map(in_join, self._wrappers)):
            raise RankError(
                "update: DistributedDataParallel.join() is active, so ranks wait for each other in each forward "
                "pass, although they may have different numbers of micro-batches. Remove join(): a rank without "
                "data calls update.micro_batches([]). After an earlier join(), call model.join(enable=False)."
            )
        for wrapper in self._known:
            closing.callback(_release, wrapper)
            _suspend(wrapper)
        for wrapper in self._wrappers:
            # A forward pass before the window, such as an evaluation with gradients enabled, has prepared the
            # reducer to average the next backward pass.
            reset_reducer(wrapper)
        for module in self._roots:
            inner = module.module if isinstance(module, DistributedDataParallel) else module
            if not compiled_in_place(inner):  # a hook would be compiled with it
                closing.callback(inner.register_forward_pre_hook(self._check_wrapper).remove)

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch, in which nothing is communicated."""

    def finish_passes(self) -> str:
        """Return nothing: passes have reduced nothing, so ranks may have reached different parameters in each."""
        return ""

    def add(self, exchange: StatusExchange) -> None:
        """All-reduce the gradients, and broadcast buffers."""
        self._group.add_gradients(self._parameters, exchange.filled)
        for wrapper in self._wrappers:
            if wrapper.broadcast_buffers:
                self._group.broadcast(list(wrapper.modules_buffers))

    def _check_wrapper(self, module: nn.Module | None = None, inputs: tuple[Any, ...] = ()) -> None:
        active = running_wrapper()
        if active is not None and not any(active is wrapper for wrapper in self._known):
            raise RankError(
                f"update: {type(module or active.module).__name__} runs inside a DistributedDataParallel that this "
                "accumulator does not know, and that averages gradients at each backward pass. Pass the wrapper: "
                "Accumulator(..., model=wrapper). If you wrapped the model again: accumulator.model = wrapper."
            )


# For each suspended wrapper: the number of open windows that suspend it, and whether it synchronized gradients and
# buffers before.
_suspended: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[int, bool, bool]] = (
    weakref.WeakKeyDictionary()
)


def _suspend(wrapper: DistributedDataParallel) -> None:
    """Keep a wrapper from communicating until ``_release`` was called as often as this function."""
    before = wrapper.require_backward_grad_sync, wrapper.require_forward_param_sync
    windows, gradients, buffers = _suspended.get(wrapper, (0, *before))
    _suspended[wrapper] = windows + 1, gradients, buffers
    wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = False


def _release(wrapper: DistributedDataParallel) -> None:
    """Let a wrapper communicate as before, unless another window still suspends it."""
    windows, gradients, buffers = _suspended.pop(wrapper)
    if windows > 1:
        _suspended[wrapper] = windows - 1, gradients, buffers
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
        raise RankError(
            "update: the composable function replicate is not supported: it averages gradients at each backward "
            "pass, and has no wrapper that could be turned off. Wrap the model in DistributedDataParallel, or use "
            "fully_shard."
        )
