"""Checks whether a loss's graph proves that a mean was taken over the items of a batch.

A missing count is read from the graph only if every operation between the loss and the model is known to keep items
apart: each element that a mean is taken over comes from one sample, and every sample gives equally many. A table
tells for each kind of node which dimensions of its output may hold samples, and which hold the model's features. A
graph doesn't show where the loss ends and the model begins, so these rules decide:

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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._inputs import inputs, leaf_at
from gradgate.autograd_graph._losses import (
    NotUnderstoodError,
    SamplesMixedError,
    reduction_of,
    shape_of,
    signed,
    without_smoothing,
)
from gradgate.autograd_graph._walk import reachable
from gradgate.torch_compat import view_base

# Operations that combine the terms of a loss.
_TERMS = ops.SUMS | ops.PRODUCTS | {ops.NEG}

_DEEPEST, _MOST = 64, 512  # limits: operations on one path, and in total

FEATURES = "features"  # of the model: has the same size in every micro-batch, and holds no samples
SAMPLES = "samples"  # may hold samples
OUTPUT = "output"  # any dimension of an opaque function's result, except the first
REPEATED = "repeated"  # repeats the same values

Shape = tuple[int, ...]


class Dimensions(NamedTuple):
    """The dimensions of a tensor, as far as they are known.

    Attributes:
        holds: FEATURES, SAMPLES, OUTPUT or REPEATED for each dimension.
        shape: the size of each dimension.
        from_samples: whether the tensor depends on samples. If not, it depends on parameters alone.
        in_order: whether samples still have the order in which the layer returned them.
        opaque: whether the tensor comes from a function that cannot be inspected.
    """

    holds: tuple[str, ...]
    shape: Shape
    from_samples: bool = True
    in_order: bool = True
    opaque: bool = False


def check_items(node: Any) -> None:
    """Check that a mean was taken over the items of the batch, with equally many items from each sample.

    Args:
        node: the node of a mean, or of a torch loss.

    Raises:
        NotUnderstoodError: an operation between the mean and the model isn't known to keep items apart.
    """
    if _is_usual_classifier(node) or _is_usual_classifier(node := without_smoothing(node)):
        return
    reader = _GraphReader()
    known = _before_reduction(reader, node) if node.name() in ops.LOSSES else reader.input(node)
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
        return [dim for dim, held in enumerate(_GraphReader().dimensions(edge).holds) if held != FEATURES]
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
    if node.name() != ops.NLL_LOSS:
        return False
    below = node.next_functions[0][0]
    if below.name() != ops.LOG_SOFTMAX or below._saved_dim != 1:
        return False
    linear = below.next_functions[0][0]
    if linear.name() != ops.ADDMM:
        return False
    (bias, _), _, (weight, _) = linear.next_functions
    return isinstance(leaf_at(weight), nn.Parameter) and (
        bias is None or isinstance(leaf_at(bias), nn.Parameter)
    )


# -- from a loss down to the layers ----------------------------------------------------------------------


class _GraphReader:
    """Reads a graph from a loss down to the layers, each node once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, int], Dimensions] = {}
        self._depth = 0

    def dimensions(self, edge: tuple[Any, int]) -> Dimensions:
        """Return the dimensions of the tensor on an edge of the graph."""
        while (understand := _TABLE.get(edge[0].name(), _unknown)) is None:
            (edge,) = edge[0].next_functions
        known = self._known.get(edge)
        if known is not None:
            return known
        if self._depth >= _DEEPEST or len(self._known) >= _MOST:
            raise NotUnderstoodError("too many operations lie between the loss and the model's last layer")
        self._depth += 1
        try:
            known = self._known[edge] = understand(self, edge[0], shape_of(*edge))
        finally:
            self._depth -= 1
        return known

    def input(self, node: Any) -> Dimensions:
        """Return the dimensions of the only input of a node."""
        (edge,) = node.next_functions
        return self.dimensions(edge)


def _unknown(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    if not isinstance(node, BackwardCFunction):
        raise NotUnderstoodError(f"{node.name()} is not known to keep the items of a batch apart")
    return Dimensions((SAMPLES, *[OUTPUT] * (len(shape) - 1))[: len(shape)], shape, opaque=True)


def _along(
    node: Any, known: Dimensions, dims: Sequence[int], shape: Shape, *, allowed: str = FEATURES
) -> Dimensions:
    """Return the dimensions of the result of an operation along ``dims``, such as a sum over them."""
    for dim in dims:
        if known.holds[dim] not in (FEATURES, allowed):
            raise NotUnderstoodError(
                f"{node.name()} works along dimension {dim} of shape {list(known.shape)}, which may hold samples"
            )
    if shape == known.shape:
        return known
    if len(shape) == len(known.holds):
        return known._replace(shape=shape)
    kept = tuple(holds for dim, holds in enumerate(known.holds) if dim not in dims)
    return known._replace(holds=kept, shape=shape)


def _dims_of(node: Any, count: int) -> list[int]:
    """Return the dimensions along which a node works. If it names none, return all ``count`` dimensions."""
    dims = getattr(node, "_saved_dim", None)
    dims = () if dims is None else dims if isinstance(dims, Iterable) else (dims,)
    return [signed(dim) % count for dim in dims if count] or list(range(count))


# -- where the model begins -----------------------------------------------------------------------------


def _leaf(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    if not isinstance(node.variable, nn.Parameter):
        raise NotUnderstoodError(f"a leaf of shape {list(shape)} is not an nn.Parameter")
    return Dimensions((FEATURES,) * len(shape), shape, from_samples=False)


def _is_parameter(reader: _GraphReader, node: Any, operand: int, saved: str) -> bool:
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

    def understand(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
        if not _is_parameter(reader, node, weight, "weight"):
            raise NotUnderstoodError(f"the weight of {node.name()} is not a parameter")
        last = features(node, len(shape))
        return Dimensions((SAMPLES,) * (len(shape) - last) + (FEATURES,) * last, shape)

    return understand


def _product(first: int, left: str, right: str) -> Understand:
    """Return a function that reads matrix products. Their operands have the indices ``first`` and ``first + 1``."""

    def understand(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
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


def _distances(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
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


# -- element by element ---------------------------------------------------------------------------------


def _joined(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Read an elementwise operation on two tensors."""
    first, second = node.next_functions[:2]
    if first[0] is not None and second[0] is not None:
        known = reader.dimensions(first)
        return (
            known if first == second else _joined_with_graphs(node, known, reader.dimensions(second), shape)
        )
    known = reader.dimensions(second if first[0] is None else first)
    weighs = node.name() in ops.PRODUCTS
    if weighs and _is_number(node._saved_self if first[0] is None else node._saved_other):
        return known
    if shape == known.shape and not weighs:  # a target
        return known
    if known.from_samples:
        does = "weighs by" if weighs else f"broadcasts shape {list(known.shape)} to {list(shape)} against"
        raise NotUnderstoodError(
            f"{node.name()} {does} a tensor without a graph, which may depend on the whole micro-batch"
        )
    # The model's input meets a parameter: the model begins here.
    holds = tuple(SAMPLES if size == 1 else FEATURES for size in _aligned(known.shape, shape))
    if SAMPLES not in holds or REPEATED in known.holds:
        raise NotUnderstoodError(f"{node.name()} leaves no dimension that can hold samples")
    return Dimensions(holds, shape)


def _joined_with_graphs(node: Any, a: Dimensions, b: Dimensions, shape: Shape) -> Dimensions:
    if not a.from_samples:
        a, b = b, a
    if not b.from_samples:  # a parameter may widen features, and must be the same for all samples
        holds = (FEATURES,) * (len(shape) - len(a.holds)) + a.holds
        sizes = zip(holds, _aligned(b.shape, shape), strict=True)
        if REPEATED not in b.holds and all(size == 1 or held == FEATURES for held, size in sizes):
            return a._replace(holds=holds, shape=shape)
    elif a.in_order and b.in_order and len(a.holds) == len(b.holds):
        pairs = list(zip(a.holds, b.holds, a.shape, b.shape, strict=True))
        holds = tuple(first if first == second else FEATURES for first, second, _, _ in pairs)
        if all(
            first == second == FEATURES
            or (size == other and (first == second or {first, second} == {FEATURES, REPEATED}))
            for first, second, size, other in pairs
        ):
            return Dimensions(holds, shape, opaque=a.opaque or b.opaque)
    raise NotUnderstoodError(
        f"{node.name()} joins shapes {list(a.shape)} and {list(b.shape)}, and may pair different samples"
    )


def _aligned(sizes: Shape, shape: Shape) -> Shape:
    return (1,) * (len(shape) - len(sizes)) + sizes


def _is_number(factor: Tensor) -> bool:
    """Return whether a saved factor was a Python number, which takes the dtype of the other operand."""
    smaller = {torch.float64: torch.float16, torch.int64: torch.int8}.get(factor.dtype)
    if factor.dim() or smaller is None:
        return False
    return torch.result_type(factor, torch.empty((), dtype=smaller, device=factor.device)) == smaller


# -- along dimensions -----------------------------------------------------------------------------------


def _over_features(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    return _along(node, known, _dims_of(node, len(known.holds)), shape)


def _over_classes(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    return _along(node, known, _dims_of(node, len(known.holds)), shape, allowed=OUTPUT)


def _within_samples(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    return _along(node, reader.input(node), range(1, len(shape)), shape)


def _sliced(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = _over_features(reader, node, shape)
    if known.from_samples:
        return known
    raise NotUnderstoodError(
        f"{node.name()} takes a part of a parameter, which may be as long as the micro-batch"
    )


def _gathered(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.dimensions(node.next_functions[0])
    (dim,) = _dims_of(node, len(known.holds))
    if shape != (*known.shape[:dim], 1, *known.shape[dim + 1 :]):
        raise NotUnderstoodError(f"{node.name()} takes {list(shape)} instead of one element of each row")
    return _along(node, known, [dim], shape)


def _one_of_each(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Read a selection of one row per sample, ``x[torch.arange(len(x)), positions]``, as in text classifiers.

    On a device, reading the first index would synchronize, so only its shape is checked.
    """
    known = reader.input(node)
    indices = node._saved_indices
    if len(indices) == 2 and known.holds[0] == SAMPLES and None not in indices:
        count, samples = known.shape[0], indices[0]
        apart = not samples.is_cpu or samples.equal(torch.arange(count))
        if samples.shape == indices[1].shape == (count,) and apart:
            return known._replace(holds=(SAMPLES, *known.holds[2:]), shape=shape)
    raise NotUnderstoodError(f"{node.name()} is not known to keep the items of a batch apart")


# -- torch losses ---------------------------------------------------------------------------------------


def _before_reduction(reader: _GraphReader, node: Any) -> Dimensions:
    """Return the dimensions of a loss before its reduction. Its input is the model's output."""
    if node.name() not in ops.ELEMENT_LOSSES:
        known = reader.dimensions(node.next_functions[0])
        classes = min(1, len(known.holds) - 1)
        left = known.shape[:classes] + known.shape[classes + 1 :]
        known = _along(node, known, [classes], left, allowed=OUTPUT)
    elif getattr(node, "_saved_weight", None) is not None:
        raise NotUnderstoodError(f"{node.name()} has a weight, which may depend on the whole micro-batch")
    else:
        given = next(edge for edge in node.next_functions if edge[0] is not None)
        two = len(node.next_functions) > 1
        known = _joined(reader, node, shape_of(*given)) if two else reader.dimensions(given)
    holds = tuple(SAMPLES if held == OUTPUT else held for held in known.holds)
    return known._replace(holds=holds, opaque=False)


def _unreduced(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    if reduction_of(node) is not None:
        raise NotUnderstoodError(f"{node.name()} is already one number for the whole micro-batch")
    return _before_reduction(reader, node)._replace(shape=shape)


# -- changes of shape -----------------------------------------------------------------------------------


def _viewed(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    """Read a change of shape. Split or merged dimensions may hold whatever any of them held."""
    known = reader.input(node)
    old, new = list(zip(known.holds, known.shape, strict=True)), list(shape)
    front: list[str] = []
    back: list[str] = []
    while old and new and old[0][1] == new[0]:
        front.append(old.pop(0)[0])
        del new[0]
    while old and new and old[-1][1] == new[-1]:
        back.append(old.pop()[0])
        del new[-1]
    beside = {*front[-1:], *back[-1:]}
    if SAMPLES not in beside and any(size == 1 and held != FEATURES for held, size in old):
        # Size 1 may be a batch of one sample, and a larger batch would be merged with the dimension beside it. If
        # that dimension holds samples, size 1 is one token per sample: x.view(-1, classes) merges both.
        front, back = ([*near[:-1], SAMPLES] if near[-1:] == [FEATURES] else near for near in (front, back))
    middle = _any_of([held for held, _ in old])
    return known._replace(holds=(*front, *[middle] * len(new), *reversed(back)), shape=shape)


def _squeezed(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    gone = [dim for dim in _dims_of(node, len(known.holds)) if known.shape[dim] == 1]
    if all(known.holds[dim] == FEATURES for dim in gone):
        return _along(node, known, gone, shape)
    # This may be a batch of one sample. A larger batch isn't _squeezed, so later dimensions would be numbered
    # differently.
    return known._replace(holds=(_any_of([SAMPLES, *known.holds]),) * len(shape), shape=shape)


def _any_of(holds: list[str]) -> str:
    return holds[0] if len({*holds}) == 1 else REPEATED if REPEATED in holds else SAMPLES


def _unsqueezed(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known, dim = reader.input(node), _dims_of(node, len(shape))[0]
    return known._replace(holds=(*known.holds[:dim], FEATURES, *known.holds[dim:]), shape=shape)


def _expanded(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    known = reader.input(node)
    new = len(shape) - len(known.holds)
    wider = [dim for dim, size in enumerate(known.shape) if shape[new + dim] != size]
    _along(node, known, wider, known.shape)
    holds = (REPEATED if dim in wider else held for dim, held in enumerate(known.holds))
    return known._replace(holds=(*[REPEATED] * new, *holds), shape=shape)


def _permuted(reader: _GraphReader, node: Any, shape: Shape) -> Dimensions:
    order = list(range(len(shape)))
    if hasattr(node, "_saved_dims"):
        order = [signed(dim) % len(shape) for dim in node._saved_dims]
    elif len(shape) > 1:
        a, b = signed(getattr(node, "_saved_dim0", 0)), signed(getattr(node, "_saved_dim1", 1))
        order[a], order[b] = order[b], order[a]
    known = reader.input(node)
    return known._replace(holds=tuple(known.holds[dim] for dim in order), shape=shape, in_order=False)


# -- the table ------------------------------------------------------------------------------------------

Understand: TypeAlias = Callable[[_GraphReader, Any, Shape], Dimensions]
"""Returns the dimensions of a node's output, given its shape."""

# How to read each kind of node; None for an operation on each element by itself.
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
    **dict.fromkeys(ops.OF_TWO_VALUES, _joined),
    **dict.fromkeys(ops.OVER_DIMENSIONS, _over_features),
    **dict.fromkeys((ops.SOFTMAX, ops.LOG_SOFTMAX), _over_classes),
    ops.SLICE: _sliced,
    ops.GATHER: _gathered,
    ops.INDEX: _one_of_each,
    **dict.fromkeys(ops.WITHIN_SAMPLES, _within_samples),
    **dict.fromkeys(ops.LOSSES, _unreduced),
    **dict.fromkeys(ops.VIEWS, _viewed),
    **dict.fromkeys(ops.SQUEEZES, _squeezed),
    ops.UNSQUEEZE: _unsqueezed,
    ops.EXPAND: _expanded,
    **dict.fromkeys(ops.PERMUTATIONS, _permuted),
}
