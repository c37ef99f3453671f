"""Warns about batch norms in a window and, on request, updates their running statistics once per window.

A batch norm in training mode normalizes each micro-batch by that micro-batch's own mean and variance. This couples
the samples of a micro-batch, so no split of a batch gives the gradient of the whole batch. Only the running
statistics can be exact, because they are a sum divided by a count.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor
from torch.nn.parameter import is_lazy

from gradgate.accumulation._batch_norm_pool import Pool, is_pooled
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


def _pointers(module: Any, pooled: Tensor | None) -> Iterator[int]:
    for tensor in (module.running_mean, module.weight, pooled):
        if isinstance(tensor, Tensor):
            yield tensor.data_ptr()
