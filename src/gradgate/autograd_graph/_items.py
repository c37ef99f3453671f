"""Checks whether a loss's graph proves that a mean was taken over the items of a batch.

A missing count is read from the graph only if every operation between the loss and the model is known to keep items
apart. A graph doesn't show where the loss ends and the model begins, so these rules decide:

- **The model begins at a layer**: a product with an ``nn.Parameter``, such as a linear layer, a convolution, an
  embedding, or a weight times the input. The input of the layer is not examined. A layer has equally many features
  in every micro-batch, and these hold no samples. In a convolution, only the first dimension holds samples.
- **A torch loss takes the model's output**, which may come from a compiled or custom function that can't be
  inspected. A plain ``.mean()`` may not take such an output, because ``DataParallel`` gathers means that way.
- **Between the two** only the operations in the table below are allowed: elementwise operations, operations along
  dimensions that can't hold samples, and changes of shape. A tensor without a graph that is added or subtracted is
  a target, and a Python number is a constant. A product with a tensor without a graph is refused, because a mask
  looks just like weights that were normalized over the micro-batch.

A graph doesn't show computations outside it: targets, class weights or Python numbers that depend on the whole
micro-batch. A micro-batch of one sample doesn't show how several would be coupled. Samples that are mixed before
the layer don't change the count; :func:`mixing` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._dimensions import (
    FEATURES,
    REPEATED,
    SAMPLES,
    Dimensions,
    GraphReader,
    Shape,
    Understand,
)
from gradgate.autograd_graph._inputs import inputs, leaf_at
from gradgate.autograd_graph._losses import NotUnderstoodError, SamplesMixedError, without_smoothing
from gradgate.autograd_graph._operations import (
    before_reduction,
    expanded,
    gathered,
    joined,
    one_of_each,
    over_classes,
    over_features,
    permuted,
    sliced,
    squeezed,
    unreduced,
    unsqueezed,
    viewed,
    within_samples,
)
from gradgate.autograd_graph._walk import reachable
from gradgate.torch_compat import view_base

# Operations that combine the terms of a loss.
_TERMS = ops.SUMS | ops.PRODUCTS | {ops.NEG}


def check_items(node: Any) -> None:
    """Check that a mean was taken over the items of the batch, with equally many items from each sample.

    Args:
        node: the node of a mean, or of a torch loss.

    Raises:
        NotUnderstoodError: an operation between the mean and the model isn't known to keep items apart.
    """
    node = without_smoothing(node)
    if _is_usual_classifier(node):
        return
    reader = GraphReader(_TABLE)
    known = before_reduction(reader, node) if node.name() in ops.LOSSES else reader.input(node)
    if not known.from_samples:
        raise NotUnderstoodError(f"{node.name()} is taken over parameters alone")
    if known.opaque:
        raise NotUnderstoodError(
            f"{node.name()} is taken over the result of a Python function (compiled, custom or gathered)"
        )
    if REPEATED in known.holds:
        raise NotUnderstoodError(f"{node.name()} is taken over expanded values")


def sample_dims(edge: tuple[Any, int]) -> list[int]:
    """Return the dimensions of a tensor that may hold samples, as far as the graph below it is understood."""
    try:
        return [
            dim for dim, held in enumerate(GraphReader(_TABLE).dimensions(edge).holds) if held != FEATURES
        ]
    except (NotUnderstoodError, AttributeError):
        return []


def compared_items(root: Any) -> tuple[Any, SamplesMixedError] | None:
    """Return the first term of a loss that compares all samples of a batch, and how; None if none is known to.

    Such a term is recognized if only elementwise operations, softmax and reshapes follow the products or distances.
    """
    for node in reachable(root, following=lambda node: inputs(node) if node.name() in _TERMS else ()):
        if not inputs(node) or node.name() in _TERMS:
            continue
        try:
            check_items(node)
        except SamplesMixedError as mixed:
            return node, mixed
        except (NotUnderstoodError, AttributeError, ValueError):
            continue
    return None


def finds_each_item(node: Any) -> bool:
    """Return whether a loss is a cross entropy over N scores of N samples, with another target for each sample."""
    node = without_smoothing(node)
    if node.name() != ops.NLL_LOSS or node._saved_self.dim() != 2:
        return False
    scores, targets = node._saved_self, node._saved_target
    return scores.shape[0] == scores.shape[1] == targets.unique().numel()  # type: ignore[no-any-return]


def _is_usual_classifier(node: Any) -> bool:
    """Return whether a node is cross entropy right after a linear layer. Then the graph need not be walked."""
    below = node.next_functions[0][0]
    if node.name() != ops.NLL_LOSS or below.name() != ops.LOG_SOFTMAX or below._saved_dim != 1:
        return False
    linear = below.next_functions[0][0]
    if linear.name() != ops.ADDMM:
        return False
    (bias, _), _, (weight, _) = linear.next_functions
    return isinstance(leaf_at(weight), nn.Parameter) and (
        bias is None or isinstance(leaf_at(bias), nn.Parameter)
    )


# -- where the model begins -----------------------------------------------------------------------------


def _leaf(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    if not isinstance(node.variable, nn.Parameter):
        raise NotUnderstoodError(f"a leaf of shape {list(shape)} is not an nn.Parameter")
    return Dimensions((FEATURES,) * len(shape), shape, from_samples=False)


def _is_parameter(reader: GraphReader, node: Any, operand: int, saved: str) -> bool:
    """Return whether an operand depends on parameters alone. A frozen parameter has no edge, but is saved."""
    edge = node.next_functions[operand]
    if isinstance(leaf_at(edge[0]), nn.Parameter):
        return True
    if edge[0] is None:
        tensor = getattr(node, f"_saved_{saved}", None)
        base = None if tensor is None or view_base.lost else view_base(tensor)
        return isinstance(tensor if base is None else base, nn.Parameter)
    try:
        known = reader.dimensions(edge)
    except NotUnderstoodError:
        return False
    return not known.from_samples and REPEATED not in known.holds


def _layer(weight: int, features: Callable[[Any, int], int]) -> Understand:
    """Return a function that reads the nodes of one kind of layer.

    Args:
        weight: the index of the weight among the operands.
        features: returns how many of the last dimensions are features, given a node and the number of dimensions.
    """

    def understand(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
        if not _is_parameter(reader, node, weight, "weight"):
            raise NotUnderstoodError(f"the weight of {node.name()} is not a parameter")
        last = features(node, len(shape))
        return Dimensions((SAMPLES,) * (len(shape) - last) + (FEATURES,) * last, shape)

    return understand


def _product(first: int, left: str, right: str) -> Understand:
    """Return a function that reads matrix products. Their operands have the indices ``first`` and ``first + 1``."""

    def understand(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
        by_right = _is_parameter(reader, node, first + 1, right)
        if not by_right and (len(shape) == 1 or not _is_parameter(reader, node, first, left)):
            _refuse_pairs(node, node.next_functions[first : first + 2], shape)
            raise NotUnderstoodError(
                f"{node.name()} multiplies by a tensor that is not a parameter, and may mix samples"
            )
        if first and node.next_functions[0][0] is not None and not _is_parameter(reader, node, 0, "self"):
            raise NotUnderstoodError(f"{node.name()} adds a tensor that is not a parameter")
        rows = (SAMPLES,) if len(shape) == 1 else (SAMPLES, FEATURES) if by_right else (FEATURES, SAMPLES)
        return Dimensions((FEATURES,) * (len(shape) - len(rows)) + rows, shape)

    return understand


def _distances(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Raise NotUnderstoodError, because distances between two sets of points may compare samples."""
    _refuse_pairs(node, node.next_functions[:2], shape)
    raise NotUnderstoodError(f"{node.name()} compares vectors that may be samples")


def _refuse_pairs(node: Any, operands: Sequence[Any], shape: Shape) -> None:
    """Raise SamplesMixedError for a square matrix if both operands are computed from parameters."""
    square = len(shape) > 1 and shape[-1] == shape[-2] > 1 and set(shape[:-2]) <= {1}
    if square and all(
        child is not None and not isinstance(leaf_at(child), nn.Parameter) for child, _ in operands
    ):
        raise SamplesMixedError(f"{node.name()} makes a matrix of {shape[-2]} by {shape[-1]} pairs")


# -- the table ------------------------------------------------------------------------------------------


_TABLE: dict[str, Understand | None] = {
    ops.LEAF: _leaf,
    **dict.fromkeys(ops.DISTANCES, _distances),
    **dict.fromkeys(ops.MATRIX_PRODUCTS, _product(0, "self", "mat2")),
    ops.MV: _product(0, "self", "vec"),
    ops.ADDMM: _product(1, "mat1", "mat2"),
    ops.LINEAR: _layer(1, lambda node, dims: 1),
    **dict.fromkeys(ops.EMBEDDINGS, _layer(0, lambda node, dims: 1)),
    **dict.fromkeys((ops.CONVOLUTION, ops.GROUP_NORM), _layer(1, lambda node, dims: dims - 1)),
    ops.LAYER_NORM: _layer(1, lambda node, dims: len(node._saved_normalized_shape)),
    **dict.fromkeys(ops.ELEMENT_FUNCTIONS | ops.WITH_NUMBERS),
    **dict.fromkeys(ops.OF_TWO_VALUES, joined),
    **dict.fromkeys(ops.OVER_DIMENSIONS, over_features),
    **dict.fromkeys((ops.SOFTMAX, ops.LOG_SOFTMAX), over_classes),
    ops.SLICE: sliced,
    ops.GATHER: gathered,
    ops.INDEX: one_of_each,
    **dict.fromkeys(ops.WITHIN_SAMPLES, within_samples),
    **dict.fromkeys(ops.LOSSES, unreduced),
    **dict.fromkeys(ops.VIEWS, viewed),
    **dict.fromkeys(ops.SQUEEZES, squeezed),
    ops.UNSQUEEZE: unsqueezed,
    ops.EXPAND: expanded,
    **dict.fromkeys(ops.PERMUTATIONS, permuted),
}
