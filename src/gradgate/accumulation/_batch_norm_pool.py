"""Pools the statistics of one batch norm over a window, without changing what the module is between two calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

_POOL = "_gradgate_pool"
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass
class _Moments:
    """Mean and sum of squared deviations per channel over ``count`` items, combined as in Chan et al. (1983)."""

    count: int
    mean: Tensor
    deviation: Tensor

    def __add__(self, other: _Moments) -> _Moments:
        count = self.count + other.count
        share = other.count / count if count else 0.0
        apart = other.mean - self.mean
        mean = self.mean + apart * share
        deviation = self.deviation + other.deviation + apart**2 * (self.count * share)
        return _Moments(count, mean, deviation)


@dataclass
class Pool:
    """Pools one module's batch statistics over a window.

    In training mode, the module runs with momentum 1 and with the pool's buffers. It writes the statistics of its
    batch there, so no second pass over the activations is needed. Between two calls, the module has its own
    momentum and the running statistics from before the window, so the block can evaluate, copy or save it.

    If a module runs several times per micro-batch, each call is pooled separately, and the buffers are updated as
    often as one pass over the whole batch would update them.
    """

    module: Any
    calls: dict[int, _Moments] = field(default_factory=dict)
    call: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        own = {name: getattr(self.module, name) for name in _BUFFERS}
        buffers = {name: None if buffer is None else torch.zeros_like(buffer) for name, buffer in own.items()}
        self.while_running: dict[str, Any] = {"momentum": 1.0, **buffers}
        vars(self.module)[_POOL] = self
        # A class instead of hooks, because torch.compile does not look for new hooks, and copies keep hooks.
        self._kind = cast(Any, type(self.module))
        self.module.__class__ = _pooling(self._kind)

    @torch.no_grad()
    def read(self, batch: Tensor) -> None:
        """Add the statistics of the module's last call, which were computed from ``batch``."""
        if self.paused:
            return
        call, self.call = self.call, self.call + 1
        count = batch.numel() // batch.shape[1]
        ranks = _ranks_of(self.module)
        if not count and ranks == 1:
            return
        mean, variance = self.while_running["running_mean"], self.while_running["running_var"]
        # SyncBatchNorm gives the variance over all ranks. The ranks' shares of the squared deviations add up to
        # variance * (all ranks' items - 1).
        self.add(call, _Moments(count, mean.clone(), variance * (count - 1 / ranks)))

    def add(self, call: int, moments: _Moments) -> None:
        """Add the moments of one call of the module."""
        self.calls[call] = self.calls[call] + moments if call in self.calls else moments

    def on_cpu(self) -> dict[int, _Moments]:
        """Return the moments of each call in a form that other ranks can receive."""
        return {
            call: _Moments(moments.count, moments.mean.cpu(), moments.deviation.cpu())
            for call, moments in self.calls.items()
        }

    def close(self) -> None:
        """Stop pooling."""
        vars(self.module).pop(_POOL, None)
        if type(self.module) is _pooling(self._kind):  # not if other code has changed the class since
            self.module.__class__ = self._kind

    def update(self) -> None:
        """Update the running statistics as a single forward pass over all samples would have done."""
        module = self.module
        for _, moments in sorted(self.calls.items(), key=itemgetter(0)):
            if module.num_batches_tracked is not None:
                module.num_batches_tracked.add_(1)
            rate = 1.0 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
            variance = moments.deviation / (moments.count - 1)
            module.running_mean.lerp_(moments.mean.to(module.running_mean.device), rate)
            module.running_var.lerp_(variance.to(module.running_var.device), rate)


def is_pooled(module: nn.Module) -> bool:
    """Return whether an open window pools a module."""
    return _POOL in vars(module)


@cache
def _pooling(kind: Any) -> Any:
    """Return a subclass of a batch norm class whose instances report each call to their pool."""

    class Pooling(kind):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            pool: Pool | None = vars(self).get(_POOL)
            if pool is None or not self.training:
                return super().__call__(*args, **kwargs)
            own = {name: getattr(self, name) for name in pool.while_running}
            try:
                _set(self, pool.while_running)
                output = super().__call__(*args, **kwargs)
            finally:
                _set(self, own)
            pool.read(args[0] if args else kwargs["input"])
            return output

        def __reduce_ex__(self, protocol: Any) -> Any:
            """Copy or pickle as an instance of the original class."""
            plain = object.__new__(kind)
            vars(plain).update({name: value for name, value in vars(self).items() if name != _POOL})
            return plain.__reduce_ex__(1)  # from protocol 2 on, pickle wants the class of this object

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(Pooling, name, getattr(kind, name))
    return Pooling


def _set(module: nn.Module, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(module, name, value)


def _ranks_of(module: nn.Module) -> int:
    """Return how many ranks share a module's batch statistics in training mode: 1 unless it is a SyncBatchNorm."""
    if isinstance(module, nn.SyncBatchNorm) and dist.is_available() and dist.is_initialized():
        return dist.get_world_size(module.process_group)
    return 1
