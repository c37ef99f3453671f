"""Count the floating-point operations (FLOPs) of a graph node, in the forward and the backward pass."""

from __future__ import annotations

import math
from typing import Any

from gradgate.autograd_graph import NotUnderstoodError, ops, shape_of

_VIEWS = ops.RESHAPES | ops.SAME_VALUES | ops.TAKEN_APART
_ATTENTION_GRADIENT = 5 / 6  # of the forward pass, for each of three inputs: five products instead of two

_Shape = tuple[int, ...]


def flops_of(node: Any) -> tuple[float, list[float]]:
    """Return the FLOPs of a node's forward pass, and the FLOPs of the gradient of each of its inputs.

    They follow from shapes alone: nothing is computed, and no saved tensor is unpacked. Matrix products,
    convolutions and attention take 2 FLOPs per multiply-add. Views take none. Everything else,
    including fused recurrent layers, takes 1 per element of its input or output, whichever is larger.

    Returns:
        Both numbers, with 0 for inputs that get no gradient. All are 0 if the shapes are unknown.
    """
    edges = node.next_functions
    try:
        out = shape_of(node)
        inputs = [None if child is None else shape_of(child, output) for child, output in edges]
    except NotUnderstoodError:
        return 0.0, [0.0] * len(edges)
    name = node.name()
    if name == ops.LEAF or name in _VIEWS:
        return 0.0, [0.0] * len(edges)
    elements = [None if shape is None else float(max(math.prod(shape), math.prod(out))) for shape in inputs]
    # `heavy`: the inputs whose gradients take as much work as the forward pass.
    forward, gradient, heavy = 0.0, 1.0, range(0)
    if name in ops.FACTORS:
        first = ops.FACTORS[name]
        forward, heavy = _product(out, *inputs[first : first + 2]), range(first, first + 2)
    elif name in ops.CONVOLUTIONS:
        forward, heavy = _convolution(node, out, *inputs[:2]), range(2)
    elif name.startswith(ops.ATTENTION) and inputs[0] is not None:
        keys = inputs[1] or inputs[2] or inputs[0]
        forward, gradient, heavy = 4.0 * math.prod(inputs[0]) * keys[-2], _ATTENTION_GRADIENT, range(3)
    gradients = [
        0.0 if size is None else gradient * forward if place in heavy and forward else size
        for place, size in enumerate(elements)
    ]
    return forward or float(math.prod(out)), gradients


def _product(out: _Shape, left: _Shape | None, right: _Shape | None) -> float:
    """Return the FLOPs of a product [..., M, K] x [..., K, N] or [M, K] x [K]. One shape may be unknown."""
    if left is not None:
        return 2.0 * math.prod(out) * left[-1]
    return 0.0 if right is None else 2.0 * math.prod(out) * right[max(len(right) - 2, 0)]


def _convolution(node: Any, out: _Shape, given: _Shape | None, weight: _Shape | None) -> float:
    """Return the FLOPs of a convolution. The shape of its input or weight may be unknown, and is then inferred."""
    transposed = bool(getattr(node, "_saved_transposed", False))
    if weight is not None and not transposed:
        return 2.0 * math.prod(out) * math.prod(weight[1:])
    large, small = (out, given) if transposed else (given, out)
    if large is None:
        return 0.0
    steps = list(zip(large[2:], node._saved_dilation, node._saved_stride, node._saved_padding, strict=True))
    if weight is not None:
        kernel = weight[2:]
        spatial: list[int] = [
            (size + 2 * padding - dilation * (width - 1) - 1) // stride + 1
            for (size, dilation, stride, padding), width in zip(steps, kernel, strict=True)
        ]
        return 2.0 * out[0] * weight[0] * math.prod(spatial) * math.prod(weight[1:])
    if small is None:
        return 0.0
    widths: list[int] = [
        (size + 2 * padding - (steps_made - 1) * stride - 1) // dilation + 1
        for (size, dilation, stride, padding), steps_made in zip(steps, small[2:], strict=True)
    ]
    return 2.0 * math.prod(small) * math.prod(widths) * large[1] / int(node._saved_groups)
