"""Which dimensions of a tensor hold the items of a batch, as far as the graph that made it proves.

A count that was left out is read only where every operation between the loss and the model is known to keep
items apart. A graph does not say where the loss ends and the model begins, so this is settled by a rule:

- **The model begins at a layer**: a product of the model's input, or of what it computed, with an ``nn.Parameter``, such as
  a linear layer, a convolution or an embedding. What it takes in is
  the model's affair, and so is what a row of it stands for. Its own dimensions (features, classes, and all but the first
  of a convolution) have sizes that do not depend on the batch, and no index of them is another sample.
- A loss of torch that is given the result of a Python function (a custom, compiled or gathered one) is given the model's
  output as well. A plain ``.mean()`` says less, and is not read there.
- **Between the layer and the mean** only operations in the tables below are understood: those of each element alone, those
  along dimensions in which no samples can lie, and changes of shape. A tensor without a graph that is added or
  subtracted is a target, and a Python number is a constant. A tensor that is multiplied by is not understood: weights
  that were normalised over the micro-batch look just the same.

What such a walk cannot see is what was made without a graph: a target or class weights computed from the whole
micro-batch, a Python number that depends on it, and layers that take in samples mixed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from gradgate.autograd_graph import (
    CLASS_LOSSES,
    ELEMENT_LOSSES,
    MARGIN_LOSSES,
    reduction_of,
    shape_of,
    signed,
)

FREE = "free"  # the model's own: as long in every micro-batch, and one sample along all of it
ITEMS = "items"  # may hold samples
OUTPUT = "output"  # of a function that cannot be looked into, all but the first
REPEATED = "repeated"  # the same value as often as the caller liked

_LEAF = "torch::autograd::AccumulateGrad"
_DEEPEST, _MOST = 64, 512  # operations on one path, and on all

Edge: TypeAlias = "tuple[Any, int]"


class NotUnderstoodError(Exception):
    """An operation that is not known to keep items apart. Its text says which and why."""


class Items(NamedTuple):
    """What is known of a tensor's dimensions.

    Attributes:
        dims: what each holds.
        shape: their sizes.
        samples: whether anything in it comes from samples; else it is made of parameters alone.
        ordered: whether samples stand in the order in which the layer put them out.
        opaque: whether it comes from a function that cannot be looked into.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    samples: bool = True
    ordered: bool = True
    opaque: bool = False


def check_items(node: Any) -> None:
    """Check that what a mean was taken over are the items of the batch, each of them once.

    Args:
        node: that of a mean, or of a loss of torch.

    Raises:
        NotUnderstoodError: something between the mean and the model is not known to keep items apart.
    """
    if _straight_from_a_linear_layer(node):
        return
    walk = _Walk()
    known = _same(walk, node, ()) if reduction_of(node) is None else _of_loss(walk, node)
    if not known.samples:
        raise NotUnderstoodError(f"{node.name()} is taken over parameters alone")
    if known.opaque:
        raise NotUnderstoodError(
            f"{node.name()} is taken over what a Python function returned (a compiled, custom or gathered one)"
        )
    if REPEATED in known.dims:
        raise NotUnderstoodError(f"{node.name()} is taken over expanded values")


def _straight_from_a_linear_layer(node: Any) -> bool:
    """Recognize the usual end of a classifier, so that a small model does not pay for the walk."""
    below = node.next_functions[0][0]
    if node.name() != "NllLossBackward0" or below.name() != "LogSoftmaxBackward0" or below._saved_dim != 1:
        return False
    layer = below.next_functions[0][0]
    if layer.name() != "AddmmBackward0":
        return False
    (bias, _), _, (weight, _) = layer.next_functions
    return _is_weight(weight) and (bias is None or _is_weight(bias))


def _is_weight(node: Any) -> bool:
    """Say whether a node is a parameter, or its transpose."""
    if node is not None and node.name() == "TBackward0":
        node = node.next_functions[0][0]
    return node is not None and node.name() == _LEAF and isinstance(node.variable, nn.Parameter)


class _Walk:
    """One walk from a loss down to the layers. Each node is understood once."""

    def __init__(self) -> None:
        self._known: dict[Edge, Items] = {}
        self._depth = 0

    def items(self, edge: Edge) -> Items:
        known = self._known.get(edge)
        if known is not None:
            return known
        node, output = edge
        name = node.name()
        understand = _TABLE.get(name)
        if understand is None:
            if not isinstance(node, BackwardCFunction):
                raise NotUnderstoodError(f"{name} is not known to keep the items of a batch apart")
            understand = _output
        if self._depth >= _DEEPEST or len(self._known) >= _MOST:
            raise NotUnderstoodError("too many operations lie between it and the model's last layer")
        self._depth += 1
        try:
            found = self._known[edge] = understand(self, node, shape_of(node, output))
        finally:
            self._depth -= 1
        return found


def _output(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    return Items((ITEMS, *[OUTPUT] * (len(shape) - 1))[: len(shape)], shape, opaque=True)


def _parameter(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    if not isinstance(node.variable, nn.Parameter):
        raise NotUnderstoodError(f"a leaf of shape {list(shape)} is no nn.Parameter")
    return Items((FREE,) * len(shape), shape, samples=False)


# -- layers: where the model begins ---------------------------------------------------------------------


def _is_parameter(walk: _Walk, node: Any, place: int, saved: str) -> bool:
    """Say whether an operand is made of parameters alone. A frozen one has no edge, but is saved."""
    edge = node.next_functions[place]
    if edge[0] is not None:
        if _is_weight(edge[0]):  # the usual case, known without a walk
            return True
        try:
            known = walk.items(edge)
        except NotUnderstoodError:
            return False
        return not known.samples and REPEATED not in known.dims
    tensor = getattr(node, f"_saved_{saved}", None)
    return isinstance(tensor, nn.Parameter) or (
        isinstance(tensor, Tensor) and isinstance(tensor._base, nn.Parameter)
    )


def _product(first: int, left: str, right: str) -> Callable[[_Walk, Any, tuple[int, ...]], Items]:
    """Return what understands a matrix product whose operands are the edges ``first`` and the next."""

    def understand(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
        by_right = _is_parameter(walk, node, first + 1, right)
        if by_right == (not by_right and _is_parameter(walk, node, first, left)):
            raise NotUnderstoodError(
                f"{node.name()} multiplies two tensors of which neither is a parameter, so it may mix samples"
            )
        if first and node.next_functions[0][0] is not None and not _is_parameter(walk, node, 0, "self"):
            raise NotUnderstoodError(f"{node.name()} adds a tensor that is no parameter")
        if len(shape) == 1 and not by_right:
            raise NotUnderstoodError(f"{node.name()} multiplies a parameter by one vector")
        rows_and_columns = (ITEMS, FREE) if by_right else (FREE, ITEMS)
        return Items((FREE, *rows_and_columns)[-len(shape) :] if len(shape) > 1 else (ITEMS,), shape)

    return understand


def _layer(
    place: int, dims: Callable[[Any, int], tuple[str, ...]]
) -> Callable[[_Walk, Any, tuple[int, ...]], Items]:
    """Return what understands a layer whose weight is the edge ``place``."""

    def understand(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
        if not _is_parameter(walk, node, place, "weight"):
            raise NotUnderstoodError(f"the weight of {node.name()} is no parameter")
        return Items(dims(node, len(shape)), shape)

    return understand


def _rows_of_features(node: Any, count: int) -> tuple[str, ...]:
    return (ITEMS,) * (count - 1) + (FREE,)


def _samples_first(node: Any, count: int) -> tuple[str, ...]:
    return (ITEMS,) + (FREE,) * (count - 1)


def _normalized(node: Any, count: int) -> tuple[str, ...]:
    features = len(node._saved_normalized_shape)
    return (ITEMS,) * (count - features) + (FREE,) * features


# -- each element alone ---------------------------------------------------------------------------------


def _same(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    (edge,) = node.next_functions
    return walk.items(edge)


def _of_two(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    first, second = node.next_functions[:2]
    if first[0] is None or second[0] is None:
        known = walk.items(second if first[0] is None else first)
        if shape == known.shape:
            return known  # and a target
        if known.samples:
            raise NotUnderstoodError(
                f"{node.name()} broadcasts shape {list(known.shape)} to {list(shape)} against a tensor without a graph"
            )
        return _with_data(node, known, shape)
    if first == second:
        return walk.items(first)
    one, other = walk.items(first), walk.items(second)
    if one.samples and other.samples:
        return Items(_aligned(node, one, other), shape, opaque=one.opaque or other.opaque)
    if one.samples:
        one, other = other, one
    return other._replace(dims=_with_parameter(node, other, one), shape=shape)


def _scaled(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    first, second = node.next_functions
    if first[0] is None or second[0] is None:
        factor = node._saved_self if first[0] is None else node._saved_other
        if not _is_number(factor):
            known = walk.items(second if first[0] is None else first)
            if not known.samples:
                return _with_data(node, known, shape)
            raise NotUnderstoodError(
                f"{node.name()} weighs by a tensor without a graph, which may have been normalised over this micro-batch"
            )
    return _of_two(walk, node, shape)


def _with_data(node: Any, parameter: Items, shape: tuple[int, ...]) -> Items:
    """Understand a parameter that meets data element by element: a layer, if a dimension is left for samples."""
    sizes = (1,) * (len(shape) - len(parameter.shape)) + parameter.shape
    dims = tuple(ITEMS if size == 1 else FREE for size in sizes)
    if ITEMS not in dims or REPEATED in parameter.dims:
        raise NotUnderstoodError(f"{node.name()} leaves no dimension in which samples can lie")
    return Items(dims, shape)


def _is_number(factor: Tensor) -> bool:
    """Say whether a saved factor was a Python number. Only these give way to the type of a tensor of no dimensions."""
    smaller = {torch.float64: torch.float16, torch.int64: torch.int8}.get(factor.dtype)
    return (
        factor.dim() == 0
        and smaller is not None
        and (torch.result_type(factor, torch.empty((), dtype=smaller, device=factor.device)) == smaller)
    )


def _aligned(node: Any, one: Items, other: Items) -> tuple[str, ...]:
    """Return the dimensions of two tensors that are joined element by element, sample by sample."""
    dims: list[str] = []
    fits = one.ordered and other.ordered and len(one.dims) == len(other.dims)
    for a, b, long, wide in zip(one.dims, other.dims, one.shape, other.shape, strict=False):
        fits &= (a == b and (a == FREE or long == wide)) or ({a, b} == {FREE, REPEATED} and long == wide)
        dims.append(a if a == b else FREE)
    if not fits:
        raise NotUnderstoodError(
            f"{node.name()} joins shapes {list(one.shape)} and {list(other.shape)}, which may pair different samples"
        )
    return tuple(dims)


def _with_parameter(node: Any, known: Items, parameter: Items) -> tuple[str, ...]:
    """Return the dimensions of a tensor that is joined with one of parameters, which may only widen features."""
    before = len(parameter.dims) - len(known.dims)
    dims = (FREE,) * max(before, 0) + known.dims
    shape = (1,) * max(before, 0) + known.shape
    against = (1,) * max(-before, 0) + parameter.shape
    for held, long, wide in zip(dims, shape, against, strict=True):
        if REPEATED in parameter.dims or (
            wide != 1 and held != FREE and not (held == REPEATED and long == wide)
        ):
            raise NotUnderstoodError(
                f"{node.name()} joins a parameter of shape {list(parameter.shape)} with shape {list(known.shape)}, "
                "one number for each sample"
            )
    return dims


# -- along dimensions -----------------------------------------------------------------------------------


def _saved_dims(node: Any, count: int) -> list[int]:
    dims = node._saved_dim
    dims = dims if isinstance(dims, Sequence) else () if dims is None else (dims,)
    return [signed(dim) % count for dim in dims if count] or list(range(count))


def _check_free(node: Any, known: Items, dims: Sequence[int], *, also: str = FREE) -> None:
    for dim in dims:
        if known.dims[dim] not in (FREE, also):
            raise NotUnderstoodError(
                f"{node.name()} works along dimension {dim} of shape {list(known.shape)}, which may hold samples"
            )


def _reduced(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    reduced = _saved_dims(node, len(known.dims)) if hasattr(node, "_saved_dim") else range(len(known.dims))
    _check_free(node, known, reduced)
    if len(shape) == len(known.dims):
        return known._replace(shape=shape)
    return known._replace(dims=tuple(d for i, d in enumerate(known.dims) if i not in reduced), shape=shape)


def _along(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    _check_free(
        node, known, _saved_dims(node, len(known.dims)), also=OUTPUT if "Softmax" in node.name() else FREE
    )
    return known


def _part(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    (dim,) = _saved_dims(node, len(known.dims))
    whole = getattr(node, "_saved_start", 1) == 0 and node._saved_end == 2**63 - 1 and node._saved_step == 1
    if not whole:  # a slice [:] is one
        _check_free(node, known, [dim])
    if len(shape) == len(known.dims):
        return known._replace(shape=shape)
    return known._replace(dims=known.dims[:dim] + known.dims[dim + 1 :], shape=shape)


def _gathered(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = walk.items(node.next_functions[0])
    (dim,) = _saved_dims(node, len(known.dims))
    _check_free(node, known, [dim])
    if any(long != wide for i, (long, wide) in enumerate(zip(known.shape, shape, strict=True)) if i != dim):
        raise NotUnderstoodError(
            f"{node.name()} takes from shape {list(known.shape)} no more than {list(shape)}"
        )
    return known._replace(dims=(*known.dims[:dim], ITEMS, *known.dims[dim + 1 :]), shape=shape)


def _joined(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    parts = [None if edge[0] is None else walk.items(edge) for edge in node.next_functions]
    first = parts[0]
    if first is None or any(
        part is None or part.dims != first.dims or part.opaque or not part.samples for part in parts
    ):
        raise NotUnderstoodError(
            f"{node.name()} puts together tensors that may hold other things than samples"
        )
    (dim,) = _saved_dims(node, len(shape))
    if len(shape) > len(first.dims):
        return Items((*first.dims[:dim], ITEMS, *first.dims[dim:]), shape, ordered=False)
    ordered = first.dims[dim] == FREE and all(part.ordered for part in parts if part)
    return Items(first.dims, shape, ordered=ordered)


def _within_samples(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    _check_free(node, known, range(1, len(known.dims)))
    return known._replace(shape=shape)


# -- losses of torch ------------------------------------------------------------------------------------


def _of_loss(walk: _Walk, node: Any) -> Items:
    """Return where the items are in a loss before it was reduced. What it was given is the model's output."""
    if node.name() in ELEMENT_LOSSES:
        if getattr(node, "_saved_weight", None) is not None:
            raise NotUnderstoodError(
                f"{node.name()} has a weight, which may have been normalised over this micro-batch"
            )
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        known = (
            _of_two(walk, node, shape_of(*edges[0])) if len(node.next_functions) > 1 else walk.items(edges[0])
        )
    else:
        known = walk.items(node.next_functions[0])
        classes = min(1, len(known.dims) - 1)
        _check_free(node, known, [classes], also=OUTPUT)
        known = known._replace(dims=without(known.dims, classes), shape=without(known.shape, classes))
    return known._replace(dims=tuple(ITEMS if held == OUTPUT else held for held in known.dims), opaque=False)


def _unreduced(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    if reduction_of(node) is not None:
        raise NotUnderstoodError(f"{node.name()} is one number for the whole micro-batch")
    return _of_loss(walk, node)._replace(shape=shape)


# -- changes of shape -----------------------------------------------------------------------------------


def _viewed(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    return known._replace(dims=_regrouped(known, shape), shape=shape)


def _regrouped(known: Items, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return what the dimensions of a view hold: those that were split or merged, the most careful of all."""
    old, new = list(zip(known.dims, known.shape, strict=True)), list(shape)
    front: list[str] = []
    back: list[str] = []
    while old and new and old[0][1] == new[0]:
        front.append(old.pop(0)[0])
        del new[0]
    while old and new and old[-1][1] == new[-1]:
        back.append(old.pop()[0])
        del new[-1]
    held = {held for held, _ in old}
    if held - {FREE} and any(size == 1 for kind, size in old if kind != FREE):
        # It may be a batch of one sample. With more of them, what stands beside it would have been merged with it.
        front, back = ([*near[:-1], ITEMS] if near[-1:] == [FREE] else near for near in (front, back))
    kind = held.pop() if len(held) == 1 else REPEATED if REPEATED in held else ITEMS
    return (*front, *[kind] * len(new), *reversed(back))


def _unsqueezed(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    dim = signed(node._saved_dim) % len(shape)
    return known._replace(dims=(*known.dims[:dim], FREE, *known.dims[dim:]), shape=shape)


def _expanded(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    new = len(shape) - len(known.dims)
    dims = [REPEATED] * new + list(known.dims)
    for dim, long in enumerate(known.shape, new):
        if shape[dim] != long:
            _check_free(node, known, [dim - new])
            dims[dim] = REPEATED
    return known._replace(dims=tuple(dims), shape=shape)


def _permuted(walk: _Walk, node: Any, shape: tuple[int, ...]) -> Items:
    known = _same(walk, node, shape)
    order = list(range(len(shape)))
    if hasattr(node, "_saved_dims"):
        order = [signed(dim) % len(shape) for dim in node._saved_dims]
    else:
        a, b = (signed(getattr(node, f"_saved_dim{i}", i)) % max(len(shape), 1) for i in (0, 1))
        order[a], order[b] = order[b], order[a]
    return known._replace(dims=tuple(known.dims[dim] for dim in order), shape=shape, ordered=False)


def without(values: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return values[:place] + values[place + 1 :]


# -- what is understood ---------------------------------------------------------------------------------

_ONE_OPERAND = """
Abs Neg Exp Exp2 Expm1 Log Log1P Log2 Log10 Sqrt Rsqrt Sin Cos Tan Tanh Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Sigmoid
LogSigmoid Logit Relu LeakyRelu Elu Celu Gelu Silu Mish Softplus Hardtanh Hardsigmoid Hardswish Softshrink Hardshrink
Threshold Erf Erfc Erfinv Lgamma Digamma Reciprocal Pow ClampMin ClampMax Clone ToCopy Alias
"""  # of Python numbers: ClampBackward1, Add.., Sub.., Mul.., Div.., RsubBackward1
_ALONG = "LogSoftmax Softmax Cumsum Logcumsumexp"
_PARTS = "Select Slice Split SplitWithSizes Unbind"
_POOLED = """
AdaptiveAvgPool2D AdaptiveAvgPool3D AvgPool2D AvgPool3D MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D
UpsampleLinear1D UpsampleNearest1D UpsampleBilinear2D UpsampleNearest2D UpsampleBicubic2D UpsampleTrilinear3D
UpsampleNearest3D PixelShuffle PixelUnshuffle
"""


def _named(names: str, understand: Any, *, numbers: str = "0") -> dict[str, Any]:
    return {f"{name}Backward{number}": understand for name in names.split() for number in numbers}


_TABLE: dict[str, Callable[[_Walk, Any, tuple[int, ...]], Items]] = {
    _LEAF: _parameter,
    "MmBackward0": _product(0, "self", "mat2"),
    "BmmBackward0": _product(0, "self", "mat2"),
    "MvBackward0": _product(0, "self", "vec"),
    "AddmmBackward0": _product(1, "mat1", "mat2"),
    "LinearBackward0": _layer(1, _rows_of_features),
    "ConvolutionBackward0": _layer(1, _samples_first),
    "NativeGroupNormBackward0": _layer(1, _samples_first),
    "NativeLayerNormBackward0": _layer(1, _normalized),
    "EmbeddingBackward0": _layer(0, _rows_of_features),
    "EmbeddingBagBackward0": _layer(0, _rows_of_features),
    "WeightNormInterfaceBackward0": _of_two,
    **_named(_ONE_OPERAND, _same),
    **_named("Clamp Add Sub Mul Div Rsub", _same, numbers="1"),
    **_named("Add Sub Rsub Maximum Minimum PreluKernel", _of_two),
    **_named("Mul Div", _scaled),
    **_named("Sum Mean Norm LinalgVectorNorm Logsumexp Amax Amin Max Min Var Std", _reduced),
    **_named("Sum Mean Norm Prod", _reduced, numbers="1"),
    **_named(_ALONG, _along),
    **_named(_PARTS, _part),
    **_named("Gather", _gathered),
    **_named("Cat Stack", _joined),
    **_named(_POOLED, _within_samples),
    **_named("View ReshapeAlias UnsafeView Squeeze", _viewed),
    **_named("Squeeze", _viewed, numbers="12"),
    **_named("Unsqueeze", _unsqueezed),
    **_named("Expand", _expanded),
    **_named("T Transpose Permute", _permuted),
    **dict.fromkeys(CLASS_LOSSES | ELEMENT_LOSSES | MARGIN_LOSSES, _unreduced),
}
