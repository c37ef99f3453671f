"""Keeps DistributedDataParallel from synchronizing gradients while a window is open."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gradgate.errors import RankError
from gradgate.ranks._overlap import Buckets
from gradgate.ranks._process_group import RankGroup
from gradgate.torch_compat import compiled_in_place, reset_reducer, running_wrapper

Sync: TypeAlias = Literal["last", "every", "overlap"]
"""When gradients are all-reduced."""


class Engine:
    """Suspends the wrappers around an accumulator's modules during a window.

    By default, DistributedDataParallel averages gradients at every backward pass, although counts may differ
    between ranks. It also broadcasts buffers before every forward pass, so that ranks wait for a rank with fewer
    micro-batches. The engine suspends both. When the window ends, its sum is all-reduced once, and buffers are
    broadcast from rank 0, as in DDP.

    Args:
        ranks: the ranks that train together.
        parameters: the parameters that the accumulator owns.
        roots: the modules of ``model=``, to find the wrapper in which they run.
        modules: the roots and all their submodules; wrappers among them are suspended.
        neighbours: the modules of other accumulators, whose wrappers may run in this accumulator's windows.
        sync: when gradients are all-reduced: with "overlap", during the last backward pass.

    Raises:
        RankError: a wrapper cannot be suspended.
    """

    def __init__(
        self,
        ranks: RankGroup,
        parameters: Sequence[Tensor] = (),
        roots: Sequence[nn.Module] = (),
        modules: Sequence[nn.Module] = (),
        neighbours: Sequence[nn.Module] = (),
        sync: Sync = "last",
    ) -> None:
        self.ranks = ranks
        self.buckets = Buckets(ranks, parameters) if sync == "overlap" else None
        self._modules = roots
        self._wrappers = _wrappers_in(modules)
        if any(wrapper.static_graph for wrapper in self._wrappers):
            raise RankError(
                "update: DistributedDataParallel was made with static_graph=True, so it cannot be kept from "
                "synchronizing in a window. Leave static_graph out."
            )
        if any(type(module).__name__ == "FullyShardedDataParallel" for module in modules):
            raise RankError(
                "update: FullyShardedDataParallel (FSDP1) is not supported. Use fully_shard or DDP."
            )
        self._known = _wrappers_in([*modules, *neighbours])
        self._held: list[DistributedDataParallel] = []
        self._handles: list[RemovableHandle] = []

    def hold(self) -> None:
        """Stop all wrappers from communicating.

        Raises:
            RankError: an unknown wrapper is in its forward pass, as Lightning's is in ``training_step``.
        """
        self._check_wrapper(self._modules[0] if self._modules else None)
        for wrapper in self._known:
            _hold(wrapper)
            self._held.append(wrapper)
        for wrapper in self._wrappers:
            # A forward pass before the window, such as an evaluation with gradients enabled, has prepared the
            # reducer to average the next backward pass.
            reset_reducer(wrapper)
        for module in self._modules:
            inner = module.module if isinstance(module, DistributedDataParallel) else module
            if not compiled_in_place(inner):  # a hook would be compiled with it
                self._handles.append(inner.register_forward_pre_hook(self._check_wrapper))

    def release(self) -> None:
        """Let wrappers communicate again, as before."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        while self._held:
            _release(self._held.pop())

    def _check_wrapper(self, module: nn.Module | None = None, inputs: tuple[Any, ...] = ()) -> None:
        """Raise RankError if a module runs inside a wrapper that is not suspended."""
        active = running_wrapper()
        if active is not None and not any(active is wrapper for wrapper in self._known):
            raise RankError(
                f"update: {type(module or active.module).__name__} runs inside a DistributedDataParallel that this "
                "accumulator does not know, and that averages gradients at each backward pass. Pass the wrapper: "
                "Accumulator(..., model=wrapper). If you wrapped the model again: accumulator.model = wrapper."
            )

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch. Nothing to do here: the sum is all-reduced at the end."""

    def discard(self) -> None:
        """Clean up after a rolled-back window. Nothing to do here."""

    def broadcast_buffers(self) -> None:
        """Broadcast the buffers of rank 0, if the wrapper was made with ``broadcast_buffers=True``."""
        for wrapper in self._wrappers:
            if wrapper.broadcast_buffers:
                self.ranks.broadcast(list(wrapper.modules_buffers))


# The open windows that suspend a wrapper, and whether it synchronized gradients and buffers before.
_holds: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[int, bool, bool]] = (
    weakref.WeakKeyDictionary()
)


def _hold(wrapper: DistributedDataParallel) -> None:
    found = wrapper.require_backward_grad_sync, wrapper.require_forward_param_sync
    windows, gradients, buffers = _holds.get(wrapper, (0, *found))
    _holds[wrapper] = windows + 1, gradients, buffers
    wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = False


def _release(wrapper: DistributedDataParallel) -> None:
    windows, gradients, buffers = _holds.pop(wrapper)
    if windows > 1:
        _holds[wrapper] = windows - 1, gradients, buffers
    else:
        wrapper.require_backward_grad_sync, wrapper.require_forward_param_sync = gradients, buffers


def _wrappers_in(modules: Sequence[nn.Module]) -> list[DistributedDataParallel]:
    """Return each wrapper among some modules once."""
    return [module for module in dict.fromkeys(modules) if isinstance(module, DistributedDataParallel)]
