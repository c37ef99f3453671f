"""Warns about batch norms in a window and, on request, updates their running statistics once per window.

A batch norm in training mode normalises each micro-batch by that micro-batch's own mean and variance. This couples
the samples of a micro-batch, so no split of a batch gives the gradient of the whole batch. Only the running
statistics can be exact, because they are a sum divided by a count.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.accumulation._settings import Models
from gradgate.autograd_graph import walk
from gradgate.errors import BatchNormWarning, OptionError, check_choice
from gradgate.torch_compat import batch_norm_classes

Statistics: TypeAlias = Literal["micro_batch", "window"]


class BatchNorms:
    """The batch norms that run in an accumulator's windows.

    Args:
        statistics: "micro_batch" leaves modules alone; "window" updates each module's running statistics once per
            window, from all its samples. Both warn once that the gradient is not that of the whole batch.
        models: the modules to search for batch norms. Without models, batch norms are found in the graph of a
            loss, and messages cannot name them.

    Attributes:
        pools: the statistics collected in the open window. Until it closes, the modules' buffers hold temporary
            values.
    """

    def __init__(self, statistics: Statistics, models: Models) -> None:
        check_choice("Accumulator", "batch_norm", statistics, ("micro_batch", "window"))
        if statistics == "window" and not models:
            raise OptionError(
                "Accumulator: batch_norm='window' pools the statistics of the model's batch norms, so it "
                "needs the model. Pass it: Accumulator(optimizer, model=model, batch_norm='window')."
            )
        self.statistics = statistics
        self.pools: list[_Pool] = []
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
                self.pools.append(_Pool(norm))

    def next_micro_batch(self) -> None:
        """Begin a micro-batch."""
        for pool in self.pools:
            pool.next_micro_batch()

    def pause(self, paused: bool) -> None:
        """Pause or resume pooling; micro-batches that run a second time are not pooled."""
        for pool in self.pools:
            pool.paused = paused

    def close(self, *, keep: bool) -> None:
        """End the window: update the running statistics once, or (``keep=False``) restore them."""
        for pool in self.pools:
            pool.close(keep=keep)
        self.pools = []

    def warn_once(self, name: str, loss: Tensor, *, stacklevel: int = 4) -> None:
        """Search the graph of a loss, once, and warn about batch norms that saw only part of the window."""
        if name in self._checked:
            return
        self._checked.add(name)
        found = [node for node, _ in walk(loss.grad_fn) if _normalises(node)]
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
        offer = (
            ", or pass model=model, batch_norm='window' to update at least the running statistics once per "
            "window"
        )
        if self.statistics == "window":
            pooled = {id(pool.module) for pool in self.pools}
            reached = bool(ran) and all(id(module) in pooled for module in ran)
            beyond = ". batch_norm='window' pools torch's own modules only"
            offer = "" if reached else beyond
        warnings.warn(
            f"{names}{more}: in training mode a batch norm normalises each micro-batch by its own mean and "
            "variance, so no split gives the gradient of the whole batch. Put it in eval() mode, use a norm "
            "without batch statistics (GroupNorm, LayerNorm), or make micro-batches as large as memory "
            f"allows{offer}.",
            BatchNormWarning,
            stacklevel=stacklevel,
        )


def _normalises(node: Any) -> bool:
    """Return whether a node is a batch norm in training mode, or a compiled graph, which may hide one."""
    kind = node.name()
    return ("BatchNorm" in kind and getattr(node, "_saved_training", True)) or "CompiledFunction" in kind


def _of_node(node: Any) -> Iterator[Tensor]:
    """Yield the running mean and the weight that a node saved; they identify its module."""
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
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        deviation = self.deviation + other.deviation + apart**2 * (self.count * other.count / count)
        return _Moments(count, mean, deviation)


_pooled: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass
class _Pool:
    """Pools one module's batch statistics over a window.

    With momentum 1 the module writes the statistics of its last batch into its running buffers, so no second
    pass over the activations is needed. If a module runs several times per micro-batch, each call is pooled
    separately, and the buffers are updated as often as on the whole batch.
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

    def next_micro_batch(self) -> None:
        self.call = 0

    @torch.no_grad()
    def _read(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.paused or not module.training:
            return
        call, self.call = self.call, self.call + 1
        count = args[0].numel() // args[0].shape[1]
        if not count:
            return
        mean, variance = cast(Tensor, self.module.running_mean), cast(Tensor, self.module.running_var)
        moments = _Moments(count, mean.clone(), variance * (count - 1))
        self.calls[call] = self.calls[call] + moments if call in self.calls else moments

    @torch.no_grad()
    def close(self, *, keep: bool) -> None:
        _pooled.discard(self.module)
        self._hook.remove()
        self.module.momentum = self._momentum
        for name, buffer in self.module.named_buffers(recurse=False):
            buffer.copy_(self._buffers[name])
        if keep:
            for _, moments in sorted(self.calls.items(), key=itemgetter(0)):
                self._move(moments)

    def _move(self, moments: _Moments) -> None:
        """Update the running statistics as a single forward pass over all samples would have done."""
        batches = self.module.num_batches_tracked
        if batches is not None:
            batches.add_(1)
        rate = self._momentum if self._momentum is not None else 1.0 / float(cast(Tensor, batches))
        cast(Tensor, self.module.running_mean).lerp_(moments.mean, rate)
        cast(Tensor, self.module.running_var).lerp_(moments.deviation / (moments.count - 1), rate)
