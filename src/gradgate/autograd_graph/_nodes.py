"""Groups of names of autograd's nodes, and functions that go from a node to its inputs."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor

from gradgate.torch_compat import saved_tensor


def named(names: str, numbers: str = "0") -> frozenset[str]:
    """Return the names of nodes: ``"AddBackward0"`` and ``"AddBackward1"`` for ``("Add", "01")``."""
    return frozenset(f"{name}Backward{number}" for name in names.split() for number in numbers)


LEAF = "torch::autograd::AccumulateGrad"
"""The name of the nodes that add gradient to leaves."""

DDP_SINK = "_DDPSinkBackward"
"""The name of the node to which DistributedDataParallel ties a model's outputs, to find unused parameters."""

_COPIES = "View ReshapeAlias UnsafeView Squeeze Unsqueeze Clone ToCopy Alias"

RESHAPES = named(f"{_COPIES} Expand Select", "012")
"""Nodes that return unchanged values in another shape, dtype or memory."""

TRANSPOSES = named("T Transpose", "01")  # 1: in place

SAME_VALUES = named(f"{_COPIES} Permute", "012") | TRANSPOSES
"""Nodes that return all of their values unchanged, in any order."""

SUMS = named("Add Sub")
"""Sums of two values."""

PRODUCTS = named("Mul Div")
"""Products and quotients of two values."""

ERRORS = named("MseLoss SmoothL1Loss HuberLoss L1Loss")
"""Losses of the difference between two values."""

ELEMENTWISE = SUMS | PRODUCTS | ERRORS | named("Pow Abs Neg")
"""Operations on each element by itself."""

CLASS_LOSSES = named("NllLoss NllLoss2D")
"""Losses of class scores in dimension 1. A mean divides by the number of targets that aren't ignored, or by the sum
of their weights."""

MARGIN_LOSSES = named("MultiMarginLoss MultilabelMarginLoss")
"""Losses of class scores in dimension 1. Their mean divides by the number of samples."""

ELEMENT_LOSSES = named(
    "MseLoss SmoothL1Loss HuberLoss SoftMarginLoss BinaryCrossEntropy BinaryCrossEntropyWithLogits"
)
"""Losses of single elements. Their mean divides by the number of elements."""

LOSSES = CLASS_LOSSES | MARGIN_LOSSES | ELEMENT_LOSSES

FACTORS = dict.fromkeys(named("Mm Bmm Mv"), 0) | dict.fromkeys(named("Addmm Baddbmm"), 1)
"""Matrix products, with the position of their first factor."""

LAYERS = FACTORS | dict.fromkeys(named("Linear Convolution"), 0)
"""Operations that multiply an input by a weight, with the position of the input among the operands."""


def is_half(node: Any) -> bool:
    """Return whether a node is a layer that reads float16 values."""
    if node.name() not in LAYERS:
        return False
    saved = (saved_tensor.use(node, name) for name in ("input", "mat1", "self"))
    return any(each is not None and each.dtype is torch.float16 for each in saved)


def inputs(node: Any) -> list[Any]:
    """Return the nodes of those inputs of a node that have a graph."""
    return [child for child, _ in node.next_functions if child is not None]


def only_input(node: Any) -> Any:
    """Return the only input that has a graph; None if no input or several have one."""
    found = inputs(node)
    return found[0] if len(found) == 1 else None


def through(node: Any, names: Container[str]) -> Any:
    """Go down from a node, always to the only input. Return the first node whose name isn't in ``names``."""
    while node is not None and node.name() in names and (below := only_input(node)) is not None:
        node = below
    return node


def leaf_at(node: Any) -> Tensor | None:
    """Return the leaf that a node adds gradient to, directly or through a transposition."""
    if node is not None and node.name() in TRANSPOSES:
        node = node.next_functions[0][0]
    leaf: Tensor | None = node.variable if node is not None and node.name() == LEAF else None
    return leaf


def layer_weight(node: Any) -> Tensor | None:
    """Return the leaf that a layer multiplies values by, or None for other nodes."""
    if node is None or node.name() not in LAYERS:
        return None
    return next((leaf for each in inputs(node) if (leaf := leaf_at(each)) is not None), None)
