"""Warns about batch norms in a window and, on request, updates their running statistics once per window.

A batch norm in training mode normalizes each micro-batch by that micro-batch's own mean and variance. This couples
the samples of a micro-batch, so no split of a batch gives the gradient of the whole batch. Only the running
statistics can be exact, because they are a sum divided by a count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any, Literal, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.accumulation._settings import Models
from gradgate.autograd_graph import walk
from gradgate.errors import BatchNormWarning, OptionError
from gradgate.options import check_choice
from gradgate.ranks import SingleProcess
from gradgate.torch_compat import batch_norm_classes
from gradgate.user_warnings import warn

Statistics: TypeAlias = Literal["micro_batch", "window"]

_POOL = "_gradgate_pool"
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class BatchNorms:
    """The batch norms that run in an accumulator's windows.

    ``statistics="window"`` updates each module's running statistics once per window. Without ``models``, batch
    norms are found in the graph of a loss, and messages cannot name them.
    """

    def __init__(self, statistics: Statistics, models: Models) -> None:
        check_choice("Accumulator", "batch_norm", statistics, ("micro_batch", "window"))
        if statistics == "window" and not models:
            raise OptionError(
                "Accumulator: batch_norm='window' pools the statistics of the model's batch norms, so it "
                "needs the model. Pass it: Accumulator(optimizer, model=model, batch_norm='window')."
            )
        self.statistics = statistics
        self.pools: list[Pool] = []  # of the open window
        self._models = models
        self._checked: set[str] = set()

    def _found(self) -> list[Any]:
        kinds = batch_norm_classes()
        norms: list[Any] = [module for module in self._models if isinstance(module, kinds)]
        return [norm for norm in norms if norm.running_mean is None or not is_lazy(norm.running_mean)]

    @property
    def pooled(self) -> bool:
        """Whether the open window has pooled statistics."""
        return any(pool.calls for pool in self.pools)

    def open(self) -> None:
        """Begin a window; with ``statistics="window"``, start pooling running statistics."""
        if self.statistics != "window":
            return
        # Modules in eval mode too, because the block may call model.train(). A module that another open window
        # already pools is skipped.
        for norm in self._found():
            if norm.running_mean is not None and not is_pooled(norm):
                self.pools.append(Pool(norm))

    def next_micro_batch(self, *, repeated: bool) -> None:
        """Begin a micro-batch. It is not pooled if this rank only repeats it because other ranks have more."""
        for pool in self.pools:
            pool.call, pool.paused = 0, repeated

    def pause(self, paused: bool) -> None:
        """Pause or resume pooling, so that the second run of a micro-batch is not pooled."""
        for pool in self.pools:
            pool.paused = paused

    def close(self) -> list[Pool]:
        """Stop pooling and return the window's pools. The running statistics are those from before the window."""
        for pool in self.pools:
            pool.close()
        pools, self.pools = self.pools, []
        return pools

    def add_ranks(self, pools: Sequence[Pool], coordinator: SingleProcess) -> None:
        """Rebuild each pool from the moments of all ranks, added in the same order on every rank."""
        if coordinator.count == 1:
            return
        places = {id(module): place for place, module in enumerate(self._models)}
        # A rank may have skipped some of the modules when its window opened, so pools are matched by module.
        own = {places[id(pool.module)]: pool.on_cpu() for pool in pools}
        of_ranks = coordinator.gather_objects(own)
        for pool in pools:
            pool.calls = {}
            for of_rank in of_ranks:
                for call, moments in of_rank.get(places[id(pool.module)], {}).items():
                    pool.add(call, moments)

    def warn_once(self, name: str, loss: Tensor) -> None:
        """Search the graph of a loss, once, and warn about batch norms that saw only part of the window."""
        if name in self._checked:
            return
        self._checked.add(name)
        found = [node for node, _ in walk(loss.grad_fn) if _normalizes(node)]
        if not found:
            return
        compiled = [node for node in found if "CompiledFunction" in node.name()]
        # A compiled graph hides its norms, so every norm in training mode is reported.
        seen = {tensor.data_ptr() for node in found for tensor in _of_node(node)}
        buffers = {id(pool.module): pool.while_running["running_mean"] for pool in self.pools}
        ran = [
            norm
            for norm in self._found()
            if norm.training and (compiled or seen & set(_pointers(norm, buffers.get(id(norm)))))
        ]
        if not ran and len(compiled) == len(found):
            return
        names = ", ".join(self._models.name(module) for module in ran[:3]) or "a batch norm"
        more = f" and {len(ran) - 3} more" if len(ran) > 3 else ""
        offer = ". To make at least the running statistics exact, pass model=model, batch_norm='window'"
        if self.statistics == "window":
            reached = bool(ran) and all(id(module) in buffers for module in ran)
            beyond = ". batch_norm='window' pools torch's own modules only"
            offer = "" if reached else beyond
        warn(
            f"{names}{more}: in training mode, a batch norm normalizes each micro-batch by its own mean and "
            "variance, so no split gives the gradient of the whole batch. Put it in eval() mode, use a norm "
            "without batch statistics (GroupNorm, LayerNorm), or make micro-batches as large as memory "
            f"allows{offer}.",
            BatchNormWarning,
        )


def _normalizes(node: Any) -> bool:
    """Return whether a node is a batch norm in training mode, or a compiled graph, which may hide one."""
    kind = node.name()
    return ("BatchNorm" in kind and getattr(node, "_saved_training", True)) or "CompiledFunction" in kind


def _of_node(node: Any) -> Iterator[Tensor]:
    """Yield the running mean and the weight that a batch norm's node saved; they identify its module."""
    for name in ("_saved_running_mean", "_saved_weight"):
        saved = getattr(node, name, None)
        if isinstance(saved, Tensor):
            yield saved


def _pointers(module: Any, pooled: Tensor | None) -> Iterator[int]:
    for tensor in (module.running_mean, module.weight, pooled):
        if isinstance(tensor, Tensor):
            yield tensor.data_ptr()


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
