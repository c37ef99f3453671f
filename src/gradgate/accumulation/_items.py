"""Whether a mean was taken over the items of a batch, as far as the loss's graph proves it.

A count that was left out is read only where every operation between the loss and the model is known to keep items
apart. A graph does not show where the loss ends and the model begins, so this is settled by rules:

- **The model begins at a layer**: a product with an ``nn.Parameter``, such as a linear layer, a convolution, an
  embedding, or a weight times the input. What a layer takes in is the model's affair, and so is what a row of it
  stands for. Its features are as many in every micro-batch and hold no samples; neither does any dimension of a
  convolution but the first.
- **A loss of torch's own is given the model's output**, so it may be given the result of a function that cannot be
  looked into: a compiled or custom one. A plain ``.mean()`` may not: ``DataParallel`` gathers means that way.
- **Between the two** only the operations in the tables below may stand: those on each element alone, those along
  dimensions in which no samples can lie, and changes of shape. A tensor without a graph that is added or subtracted
  is a target, and a Python number is a constant. Multiplying by a tensor without a graph is refused: weights that
  were normalised over the micro-batch look just like a mask.

No walk can see what was made without a graph: a target or class weights computed from the whole micro-batch, a
Python number that depends on it, the inputs of a layer in which samples were mixed before. And a micro-batch of one
sample does not show how more of them would be coupled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._dimensions import (
    ITEMS,
    OUTPUT,
    REPEATED,
    Dimensions,
    check_free,
    expanded,
    layer_of_elements,
    permuted,
    squeezed,
    together,
    unsqueezed,
    viewed,
    with_data,
    without,
)
from gradgate.accumulation._layers import (
    LEAF,
    Shape,
    Understand,
    Walk,
    features_last,
    is_weight,
    layer,
    leaf,
    normalized_last,
    pairs,
    product,
    samples_first,
)
from gradgate.autograd_graph import (
    CLASS_LOSSES,
    ELEMENT_LOSSES,
    MARGIN_LOSSES,
    NotUnderstoodError,
    reduction_of,
    shape_of,
    signed,
)


def check_items(node: Any) -> None:
    """Check that what a mean was taken over are the items of the batch, as many of each sample.

    Args:
        node: that of a mean, or of a loss of torch.

    Raises:
        NotUnderstoodError: something between the mean and the model is not known to keep items apart.
    """
    if _straight_from_a_linearlayer(node):
        return
    walk = Walk(_TABLE)
    known = _same(walk, node, ()) if reduction_of(node) is None else _of_loss(walk, node)
    if not known.samples:
        raise NotUnderstoodError(f"{node.name()} is taken over parameters alone")
    if known.opaque:
        raise NotUnderstoodError(
            f"{node.name()} is taken over what a Python function returned (a compiled, custom or gathered one)"
        )
    if REPEATED in known.held:
        raise NotUnderstoodError(f"{node.name()} is taken over expanded values")


def _straight_from_a_linearlayer(node: Any) -> bool:
    """Recognize the usual end of a classifier, so that a small model does not pay for the walk."""
    below = node.next_functions[0][0]
    if node.name() != "NllLossBackward0" or below.name() != "LogSoftmaxBackward0" or below._saved_dim != 1:
        return False
    layer = below.next_functions[0][0]
    if layer.name() != "AddmmBackward0":
        return False
    (bias, _), _, (weight, _) = layer.next_functions
    return is_weight(weight) and (bias is None or is_weight(bias))


# -- each element alone ---------------------------------------------------------------------------------


def _same(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    (edge,) = node.next_functions
    return walk.dimensions(edge)


def _of_two(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    first, second = node.next_functions[:2]
    if first[0] is None or second[0] is None:
        return with_data(node.name(), walk.dimensions(second if first[0] is None else first), shape)
    if first == second:
        return walk.dimensions(first)
    return together(node.name(), walk.dimensions(first), walk.dimensions(second), shape)


def _scaled(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    first, second = node.next_functions
    if first[0] is not None and second[0] is not None:
        return _of_two(walk, node, shape)
    known = walk.dimensions(second if first[0] is None else first)
    if _is_number(node._saved_self if first[0] is None else node._saved_other):
        return known
    if known.samples:
        raise NotUnderstoodError(
            f"{node.name()} weighs by a tensor without a graph, which may be normalised over the micro-batch"
        )
    return layer_of_elements(node.name(), known, shape)


def _is_number(factor: Tensor) -> bool:
    """Say whether a saved factor was a Python number: it gives way to the type of a tensor without dimensions."""
    smaller = {torch.float64: torch.float16, torch.int64: torch.int8}.get(factor.dtype)
    if factor.dim() or smaller is None:
        return False
    return torch.result_type(factor, torch.empty((), dtype=smaller, device=factor.device)) == smaller


# -- along dimensions -----------------------------------------------------------------------------------


def _dims(node: Any, count: int) -> list[int]:
    """Return the dimensions along which a node works, of those its input has: all of them if it names none."""
    dims = getattr(node, "_saved_dim", None)
    dims = () if dims is None else dims if isinstance(dims, Iterable) else (dims,)
    return [signed(dim) % count for dim in dims if count] or list(range(count))


def _reduced(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = _same(walk, node, shape)
    dims = _dims(node, len(known.held))
    check_free(node.name(), known, dims)
    return without(known, dims, shape)


def _along(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = _same(walk, node, shape)
    check_free(node.name(), known, _dims(node, len(known.held)))
    return known


def _over_classes(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = _same(walk, node, shape)
    check_free(node.name(), known, _dims(node, len(known.held)), also=OUTPUT)
    return known


def _part(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = _same(walk, node, shape)
    dims = _dims(node, len(known.held))
    check_free(node.name(), known, dims)
    return without(known, dims, shape)


def _sliced(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    if (node._saved_start, node._saved_end, node._saved_step) == (0, 2**63 - 1, 1):  # [:]
        return _same(walk, node, shape)
    known = _part(walk, node, shape)
    if not known.samples:
        raise NotUnderstoodError(
            f"{node.name()} takes a part of a parameter, which may be as long as the micro-batch"
        )
    return known


def _gathered(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = walk.dimensions(node.next_functions[0])
    (dim,) = _dims(node, len(known.held))
    check_free(node.name(), known, [dim])
    if shape != (*known.shape[:dim], 1, *known.shape[dim + 1 :]):
        raise NotUnderstoodError(f"{node.name()} takes not one element of each row, but {list(shape)}")
    return known._replace(shape=shape)


def _within_samples(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = _same(walk, node, shape)
    check_free(node.name(), known, range(1, len(known.held)))
    return known._replace(shape=shape)


# -- losses of torch ------------------------------------------------------------------------------------


def _of_loss(walk: Walk, node: Any) -> Dimensions:
    """Return what is known of a loss before it was reduced. What it was given is the model's output."""
    if node.name() in ELEMENT_LOSSES:
        if getattr(node, "_saved_weight", None) is not None:
            raise NotUnderstoodError(
                f"{node.name()} has a weight, which may be normalised over the micro-batch"
            )
        given = next(edge for edge in node.next_functions if edge[0] is not None)
        both = len(node.next_functions) > 1
        known = _of_two(walk, node, shape_of(*given)) if both else walk.dimensions(given)
    else:
        known = walk.dimensions(node.next_functions[0])
        classes = min(1, len(known.held) - 1)
        check_free(node.name(), known, [classes], also=OUTPUT)
        known = without(known, [classes], known.shape[:classes] + known.shape[classes + 1 :])
    return known._replace(held=tuple(ITEMS if held == OUTPUT else held for held in known.held), opaque=False)


def _unreduced(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    if reduction_of(node) is not None:
        raise NotUnderstoodError(f"{node.name()} below it is one number for the whole micro-batch")
    return _of_loss(walk, node)._replace(shape=shape)


# -- changes of shape -----------------------------------------------------------------------------------


def _viewed(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    return viewed(_same(walk, node, shape), shape)


def _squeezed(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    known = _same(walk, node, shape)
    return squeezed(known, _dims(node, len(known.held)), shape)


def _unsqueezed(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    return unsqueezed(_same(walk, node, shape), _dims(node, len(shape))[0], shape)


def _expanded(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    return expanded(node.name(), _same(walk, node, shape), shape)


def _permuted(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    return permuted(_same(walk, node, shape), [signed(dim) % len(shape) for dim in node._saved_dims], shape)


def _transposed(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    order = list(range(len(shape)))
    if len(shape) > 1:
        a, b = signed(getattr(node, "_saved_dim0", 0)), signed(getattr(node, "_saved_dim1", 1))
        order[a], order[b] = order[b], order[a]
    return permuted(_same(walk, node, shape), order, shape)


# -- the tables -----------------------------------------------------------------------------------------


def _named(names: str, understand: Understand, *, numbers: str = "0") -> dict[str, Understand]:
    return {f"{name}Backward{number}": understand for name in names.split() for number in numbers}


_TABLE: dict[str, Understand] = {
    LEAF: leaf,
    **_named("Cdist EuclideanDist", pairs),
    **_named("Mm Bmm", product(0, "self", "mat2")),
    **_named("Mv", product(0, "self", "vec")),
    **_named("Addmm", product(1, "mat1", "mat2")),
    **_named("Linear", layer(1, features_last)),
    **_named("Embedding EmbeddingBag", layer(0, features_last)),
    **_named("Convolution NativeGroupNorm", layer(1, samples_first)),
    **_named("NativeLayerNorm", layer(1, normalized_last)),
    **_named(
        "Abs Neg Exp Exp2 Expm1 Log Log1P Log2 Log10 Sqrt Rsqrt Reciprocal Pow Erf Erfc Erfinv Lgamma", _same
    ),
    **_named("Sin Cos Tan Tanh Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Digamma Clone ToCopy Alias", _same),
    **_named("Sigmoid LogSigmoid Logit Relu LeakyRelu Elu Celu Gelu Silu Mish Softplus Threshold", _same),
    **_named("Hardtanh Hardsigmoid Hardswish Softshrink Hardshrink ClampMin ClampMax", _same),
    **_named("Clamp Add Sub Mul Div Rsub", _same, numbers="1"),  # with a Python number
    **_named("Add Sub Rsub Maximum Minimum PreluKernel WeightNormInterface", _of_two),
    **_named("Mul Div", _scaled),
    **_named("Sum Mean Norm LinalgVectorNorm Logsumexp Amax Amin Max Min Var Std", _reduced),
    **_named("Sum Mean Norm Prod", _reduced, numbers="1"),
    **_named("LogSoftmax Softmax", _over_classes),
    **_named("Cumsum Logcumsumexp", _along),
    **_named("Select Split SplitWithSizes Unbind", _part),
    **_named("Slice", _sliced),
    **_named("Gather", _gathered),
    **_named("AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D", _within_samples),
    **_named("MaxPool2DWithIndices MaxPool3DWithIndices PixelShuffle PixelUnshuffle", _within_samples),
    **_named("UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D UpsampleTrilinear3D", _within_samples),
    **_named("UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D", _within_samples),
    **dict.fromkeys(CLASS_LOSSES | ELEMENT_LOSSES | MARGIN_LOSSES, _unreduced),
    **_named("View ReshapeAlias UnsafeView", _viewed),
    **_named("Squeeze", _squeezed, numbers="012"),
    **_named("Unsqueeze", _unsqueezed),
    **_named("Expand", _expanded),
    **_named("Permute", _permuted),
    **_named("T Transpose", _transposed),
}
