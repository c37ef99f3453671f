"""Warns about batch norms in a window and, on request, updates their running statistics once per window.

A batch norm in training mode normalizes each micro-batch by that micro-batch's own mean and variance. This couples
the samples of a micro-batch, so no split of a batch gives the gradient of the whole batch. Only the running
statistics can be exact, because they are a sum divided by a count.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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

Statistics: TypeAlias = Literal["micro_batch", "window"]


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
        self.pools: list[
            Pool
        ] = []  # of the open window; meanwhile the modules' buffers hold temporary values
        self._models = models
        self._checked: set[str] = set()

    def _training(self) -> list[Any]:
        kinds = batch_norm_classes()
        norms: list[Any] = [
            module for module in self._models if isinstance(module, kinds) and module.training
        ]
        return [norm for norm in norms if norm.running_mean is None or not is_lazy(norm.running_mean)]

    def open(self) -> None:
        """Begin a window; with ``statistics="window"``, start pooling running statistics."""
        if self.statistics != "window":
            return
        # Skip a module that another open window already pools: its buffers hold temporary values.
        for norm in self._training():
            if norm.running_mean is not None and norm not in _pooled:
                self.pools.append(Pool(norm))

    def next_micro_batch(self, *, repeated: bool) -> None:
        """Begin a micro-batch. It is not pooled if this rank only repeats it because other ranks have more."""
        for pool in self.pools:
            pool.call, pool.paused = 0, repeated

    def pause(self, paused: bool) -> None:
        """Pause or resume pooling, so that the second run of a micro-batch is not pooled."""
        for pool in self.pools:
            pool.paused = paused

    def restore(self) -> list[Pool]:
        """Stop pooling, restore the running statistics, and return the window's pools."""
        for pool in self.pools:
            pool.restore()
        pools, self.pools = self.pools, []
        return pools

    def add_ranks(self, pools: Sequence[Pool], coordinator: SingleProcess) -> None:
        """Rebuild each pool from the moments of all ranks, added in the same order on every rank."""
        if coordinator.count == 1:
            return
        places = {id(module): place for place, module in enumerate(self._models)}
        # A rank may have put some of the modules into eval mode, so pools are matched by module.
        own = {places[id(pool.module)]: pool.on_cpu() for pool in pools}
        of_ranks = coordinator.gather_objects(own)
        for pool in pools:
            pool.calls = {}
            for of_rank in of_ranks:
                for call, moments in of_rank.get(places[id(pool.module)], {}).items():
                    pool.add(call, moments)

    def warn_once(self, name: str, loss: Tensor, *, stacklevel: int = 4) -> None:
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
        ran = [norm for norm in self._training() if compiled or seen & set(_pointers(norm))]
        if not ran and len(compiled) == len(found):
            return
        names = ", ".join(self._models.name(module) for module in ran[:3]) or "a batch norm"
        more = f" and {len(ran) - 3} more" if len(ran) > 3 else ""
        offer = ". To make at least the running statistics exact, pass model=model, batch_norm='window'"
        if self.statistics == "window":
            pooled = {id(pool.module) for pool in self.pools}
            reached = bool(ran) and all(id(module) in pooled for module in ran)
            beyond = ". batch_norm='window' pools torch's own modules only"
            offer = "" if reached else beyond
        warnings.warn(
            f"{names}{more}: in training mode, a batch norm normalizes each micro-batch by its own mean and "
            "variance, so no split gives the gradient of the whole batch. Put it in eval() mode, use a norm "
            "without batch statistics (GroupNorm, LayerNorm), or make micro-batches as large as memory "
            f"allows{offer}.",
            BatchNormWarning,
            stacklevel=stacklevel,
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


def _pointers(module: Any) -> Iterator[int]:
    for tensor in (module.running_mean, module.weight):
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


_pooled: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass
class Pool:
    """Pools one module's batch statistics over a window.

    With momentum 1 the module writes the statistics of its last batch into its running buffers, so no second
    pass over the activations is needed. If a module runs several times per micro-batch, each call is pooled
    separately, and the buffers are updated as often as one pass over the whole batch would update them.
    """

    module: Any
    calls: dict[int, _Moments] = field(default_factory=dict)
    call: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        self._buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers(recurse=False)}
        _pooled.add(self.module)
        self._momentum = self.module.momentum
        self.module.momentum = 1.0
        self._hook = self.module.register_forward_hook(self._read)

    @torch.no_grad()
    def _read(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.paused or not module.training:
            return
        call, self.call = self.call, self.call + 1
        count = args[0].numel() // args[0].shape[1]
        ranks = _ranks_of(module)
        if not count and ranks == 1:
            return
        mean, variance = cast(Tensor, self.module.running_mean), cast(Tensor, self.module.running_var)
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

    @torch.no_grad()
    def restore(self) -> None:
        """Stop pooling and restore the module's buffers."""
        _pooled.discard(self.module)
        self._hook.remove()
        self.module.momentum = self._momentum
        for name, buffer in self.module.named_buffers(recurse=False):
            buffer.copy_(self._buffers[name])

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


def _ranks_of(module: nn.Module) -> int:
    """Return how many ranks share a module's batch statistics in training mode: 1 unless it is a SyncBatchNorm."""
    if isinstance(module, nn.SyncBatchNorm) and dist.is_available() and dist.is_initialized():
        return dist.get_world_size(module.process_group)
    return 1
