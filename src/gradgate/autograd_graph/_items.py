"""Whether a mean was taken over the items of a batch, as far as the loss's graph proves it.

A count that was left out is read only if every operation between the loss and the model is known to keep items
apart. A graph doesn't show where the loss ends and the model begins, so these rules decide:

- **The model begins at a layer**: a product with an ``nn.Parameter``, such as a linear layer, a convolution, an
  embedding, or a weight times the input. What goes into a layer is the model's affair, and so is the meaning of its
  rows. A layer's features have the same number in every micro-batch and hold no samples. Neither does any dimension
  of a convolution but the first.
- **A loss of torch takes the model's output**, so it may take the result of a function that can't be looked into:
  a compiled or a custom one. A plain ``.mean()`` may not: ``DataParallel`` gathers means that way.
- **Between the two** only the operations in the table below are allowed: elementwise ones, those along dimensions
  that can't hold samples, and changes of shape. A tensor without a graph that is added or subtracted is a target,
  and a Python number is a constant. A product with a tensor without a graph is refused: a mask looks just like
  weights that were normalized over the micro-batch.

A graph doesn't show what was computed outside it: a target or class weights that depend on the whole micro-batch, a
Python number that does, or samples mixed before the layer. And a micro-batch of one sample doesn't show how several
would be coupled.
"""

from __future__ import annotations

from typing import Any

from gradgate.autograd_graph._dimensions import REPEATED, Reader, Understand
from gradgate.autograd_graph._layers import (
    LEAF,
    distances,
    features_last,
    is_weight,
    layer,
    leaf,
    normalized_last,
    product,
    samples_first,
)
from gradgate.autograd_graph._losses import LOSSES, NotUnderstoodError
from gradgate.autograd_graph._operations import (
    before_reduction,
    expanded,
    gathered,
    of_two,
    over_classes,
    over_features,
    permuted,
    same,
    scaled,
    sliced,
    squeezed,
    transposed,
    unreduced,
    unsqueezed,
    viewed,
    within_samples,
)


def check_items(node: Any) -> None:
    """Check that a mean was taken over the items of the batch, the same number from each sample.

    Args:
        node: of a mean, or of a loss of torch.

    Raises:
        NotUnderstoodError: an operation between the mean and the model isn't known to keep items apart.
    """
    if _is_usual_classifier(node):
        return
    reader = Reader(_TABLE)
    known = before_reduction(reader, node) if node.name() in LOSSES else same(reader, node, ())
    if not known.from_samples:
        raise NotUnderstoodError(f"{node.name()} is taken over parameters alone")
    if known.opaque:
        raise NotUnderstoodError(
            f"{node.name()} is taken over what a Python function returned (a compiled, custom or gathered one)"
        )
    if REPEATED in known.holds:
        raise NotUnderstoodError(f"{node.name()} is taken over expanded values")


def _is_usual_classifier(node: Any) -> bool:
    """Recognize cross entropy right after a linear layer, so that a small model doesn't pay for the walk."""
    below = node.next_functions[0][0]
    if node.name() != "NllLossBackward0" or below.name() != "LogSoftmaxBackward0" or below._saved_dim != 1:
        return False
    linear = below.next_functions[0][0]
    if linear.name() != "AddmmBackward0":
        return False
    (bias, _), _, (weight, _) = linear.next_functions
    return is_weight(weight) and (bias is None or is_weight(bias))


# -- the table ------------------------------------------------------------------------------------------


def _named(names: str, understand: Understand, *, numbers: str = "0") -> dict[str, Understand]:
    return {f"{name}Backward{number}": understand for name in names.split() for number in numbers}


_TABLE: dict[str, Understand] = {
    LEAF: leaf,
    **_named("Cdist EuclideanDist", distances),
    **_named("Mm Bmm", product(0, "self", "mat2")),
    **_named("Mv", product(0, "self", "vec")),
    **_named("Addmm", product(1, "mat1", "mat2")),
    **_named("Linear", layer(1, features_last)),
    **_named("Embedding EmbeddingBag", layer(0, features_last)),
    **_named("Convolution NativeGroupNorm", layer(1, samples_first)),
    **_named("NativeLayerNorm", layer(1, normalized_last)),
    **_named("Abs Neg Exp Exp2 Expm1 Log Log1P Log2 Log10 Sqrt Rsqrt Reciprocal Pow Erf Erfc Erfinv", same),
    **_named("Sin Cos Tan Tanh Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Lgamma Digamma", same),
    **_named("Sigmoid LogSigmoid Logit Relu LeakyRelu Elu Celu Gelu Silu Mish Softplus Threshold", same),
    **_named("Hardtanh Hardsigmoid Hardswish Softshrink Hardshrink ClampMin ClampMax", same),
    **_named("Clone ToCopy Alias", same),
    **_named("Clamp Add Sub Mul Div Rsub", same, numbers="1"),  # with a Python number
    **_named("Add Sub Rsub Maximum Minimum PreluKernel WeightNormInterface", of_two),
    **_named("Mul Div", scaled),
    **_named("Sum Mean Norm LinalgVectorNorm Logsumexp Amax Amin Max Min Var Std", over_features),
    **_named("Sum Mean Norm Prod", over_features, numbers="1"),
    **_named("Cumsum Logcumsumexp Select Split SplitWithSizes Unbind", over_features),
    **_named("LogSoftmax Softmax", over_classes),
    **_named("Slice", sliced),
    **_named("Gather", gathered),
    **_named("AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D", within_samples),
    **_named("MaxPool2DWithIndices MaxPool3DWithIndices PixelShuffle PixelUnshuffle", within_samples),
    **_named("UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D UpsampleTrilinear3D", within_samples),
    **_named("UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D", within_samples),
    **dict.fromkeys(LOSSES, unreduced),
    **_named("View ReshapeAlias UnsafeView", viewed),
    **_named("Squeeze", squeezed, numbers="012"),
    **_named("Unsqueeze", unsqueezed),
    **_named("Expand", expanded),
    **_named("Permute", permuted),
    **_named("T Transpose", transposed),
}
