"""Reads the layers of a graph: the weight that one multiplies by, and the dtype of its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import inputs, leaf_at, ops
from gradgate.torch_compat import saved_tensor


def is_half(node: Any) -> bool:
    """Return whether a node is a layer that reads float16 values."""
    if node.name() not in ops.LAYERS:
        return False
    operands = (saved_tensor.use(node, name) for name in ("input", "mat1", "self"))
    return any(operand is not None and operand.dtype is torch.float16 for operand in operands)


def layer_weight(node: Any) -> Tensor | None:
    """Return the leaf that a layer multiplies values by, or None for other nodes."""
    if node is None or node.name() not in ops.LAYERS:
        return None
    return next((leaf for child in inputs(node) if (leaf := leaf_at(child)) is not None), None)
