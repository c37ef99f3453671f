"""What the nodes of torch's own losses say for certain: their reduction, and the number that a mean was divided by.

Autograd saves both for the backward pass, under the documented names ``grad_fn._saved_...``.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from gradgate.torch_compat import node_shape

_REDUCTIONS: dict[int, Literal["mean", "sum"]] = {1: "mean", 2: "sum"}  # at::Reduction, as loss nodes save it

CLASS_LOSSES = frozenset({"NllLossBackward0", "NllLoss2DBackward0"})
"""Losses of class scores in dimension 1: the mean is divided by the (weights of the) targets not ignored."""

MARGIN_LOSSES = frozenset({"MultiMarginLossBackward0", "MultilabelMarginLossBackward0"})
"""Losses of class scores in dimension 1: the mean is divided by the samples."""

ELEMENT_LOSSES = frozenset(
    {
        "MseLossBackward0",
        "SmoothL1LossBackward0",
        "HuberLossBackward0",
        "SoftMarginLossBackward0",
        "BinaryCrossEntropyBackward0",
        "BinaryCrossEntropyWithLogitsBackward0",
    }
)
"""Losses of each element alone: the mean is divided by the elements."""


class NotUnderstoodError(Exception):
    """A graph does not say what was asked of it. The text names the node, and why."""


class SamplesMixedError(NotUnderstoodError):
    """A product or distance between all the samples of a micro-batch."""


def reduction_of(node: Any) -> Literal["mean", "sum"] | None:
    """Return how a loss of torch was reduced; None for no reduction, and for any other node."""
    return _REDUCTIONS.get(getattr(node, "_saved_reduction", 0))


def is_sum_of_losses(node: Any) -> bool:
    """Say whether a node adds up a loss of torch that was not reduced, as ``reduction="sum"`` does."""
    if node is None or node.name() != "SumBackward0":
        return False
    below = node.next_functions[0][0]
    known = CLASS_LOSSES | ELEMENT_LOSSES | MARGIN_LOSSES
    return below is not None and below.name() in known and reduction_of(below) is None


def shape_of(node: Any, output: int = 0) -> tuple[int, ...]:
    """Return the shape of what a node put out in the forward pass."""
    if node_shape.lost:
        raise NotUnderstoodError(node_shape.loss)
    return node_shape(node, output)


def signed(dim: int) -> int:
    """Return a dimension as it was written: autograd saves -1 without its sign."""
    return dim - 2**64 if dim >= 2**63 else dim


def divisor_of(node: Any) -> int | float | Tensor | None:
    """Return the number by which a mean of torch divided a sum, or None where a node does not say.

    It is a fact about a node that put out one number. Whether what was added up are the items of a batch is another
    question. A number that lies on a device is returned as a tensor, so that nobody waits for it here.
    """
    kind = node.name()
    if kind in ("MeanBackward0", "MeanBackward1"):
        return int(node._saved_self_sym_numel)
    if reduction_of(node) != "mean":
        return None
    if kind in CLASS_LOSSES:
        return _targets(node)
    below, output = next(edge for edge in node.next_functions if edge[0] is not None)
    shape = shape_of(below, output)
    if kind in ELEMENT_LOSSES:
        return math.prod(shape)
    return shape[0] if kind in MARGIN_LOSSES and len(shape) == 2 else None


def _targets(node: Any) -> int | Tensor | None:
    total: Tensor = node._saved_total_weight
    weighted = node._saved_weight is not None
    if total.is_cpu and not weighted and total.dtype in (torch.float32, torch.float64):
        return int(total)  # targets that are not weighted are whole
    if total.dtype not in (torch.float16, torch.bfloat16):
        return total
    # A 16-bit loss saves a 16-bit total, which cannot hold 513. Unweighted targets can be counted again.
    return None if weighted else (node._saved_target != signed(node._saved_ignore_index)).sum()
