"""Warns about batch norms in a window.

A batch norm in training mode normalizes each micro-batch by that micro-batch's own mean and variance. This couples
the samples of a micro-batch, so no split of a batch gives the gradient of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.accumulation._settings import Models
from gradgate.autograd_graph import walk
from gradgate.errors import BatchNormWarning
from gradgate.user_warnings import warn

_CLASSES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class BatchNorms:
    """The batch norms that run in an accumulator's windows.

    Without ``models``, batch norms are found in the graph of a loss, and messages cannot name them.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._checked: set[str] = set()

    def _found(self) -> list[Any]:
        norms: list[Any] = [module for module in self._models if isinstance(module, _CLASSES)]
        return [norm for norm in norms if norm.running_mean is None or not is_lazy(norm.running_mean)]

    def warn_once(self, name: str, loss: Tensor) -> bool:
        """Search the graph of a loss, once, and warn about batch norms that saw only part of the window.

        Returns whether this call found a batch norm.
        """
        if name in self._checked:
            return False
        self._checked.add(name)
        found = [node for node, _ in walk(loss.grad_fn) if _normalizes(node)]
        if not found:
            return False
        compiled = [node for node in found if "CompiledFunction" in node.name()]
        # A compiled graph hides its norms, so every norm in training mode is reported.
        seen = {tensor.data_ptr() for node in found for tensor in _of_node(node)}
        ran = [norm for norm in self._found() if norm.training and (compiled or seen & set(_pointers(norm)))]
        if not ran and len(compiled) == len(found):
            return False
        names = ", ".join(self._models.name(module) for module in ran[:3]) or "a batch norm"
        more = f" and {len(ran) - 3} more" if len(ran) > 3 else ""
        warn(
            f"{names}{more}: in training mode, a batch norm normalizes each micro-batch by its own mean and "
            "variance, so no split gives the gradient of the whole batch. Put it in eval() mode, use a norm "
            "without batch statistics (GroupNorm, LayerNorm), or make micro-batches as large as memory "
            "allows.",
            BatchNormWarning,
        )
        return True


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
