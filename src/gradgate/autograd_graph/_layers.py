"""The layers of a model, at which the walk down from a loss ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gradgate.autograd_graph._dimensions import (
    FEATURES,
    REPEATED,
    SAMPLES,
    Dimensions,
    Reader,
    Shape,
    Understand,
)
from gradgate.autograd_graph._losses import NotUnderstoodError, SamplesMixedError
from gradgate.torch_compat import view_base

LEAF = "torch::autograd::AccumulateGrad"


def leaf(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    if not isinstance(node.variable, nn.Parameter):
        raise NotUnderstoodError(f"a leaf of shape {list(shape)} is no nn.Parameter")
    return Dimensions((FEATURES,) * len(shape), shape, from_samples=False)


def is_weight(node: Any) -> bool:
    """Return whether a node is a parameter, or the transpose of one."""
    if node is not None and node.name() == "TBackward0":
        node = node.next_functions[0][0]
    return node is not None and node.name() == LEAF and isinstance(node.variable, nn.Parameter)


def _is_parameter(reader: Reader, node: Any, operand: int, saved: str) -> bool:
    """Return whether an operand is made of parameters alone. A frozen one has no edge, but is saved."""
    edge = node.next_functions[operand]
    if is_weight(edge[0]):
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


def layer(weight: int, holds: Callable[[Any, int], tuple[str, ...]]) -> Understand:
    """Return what understands a layer whose weight is the operand of this number."""

    def understand(reader: Reader, node: Any, shape: Shape) -> Dimensions:
        if not _is_parameter(reader, node, weight, "weight"):
            raise NotUnderstoodError(f"the weight of {node.name()} is no parameter")
        return Dimensions(holds(node, len(shape)), shape)

    return understand


def features_last(node: Any, dims: int) -> tuple[str, ...]:
    return (SAMPLES,) * (dims - 1) + (FEATURES,)


def samples_first(node: Any, dims: int) -> tuple[str, ...]:
    return (SAMPLES,) + (FEATURES,) * (dims - 1)


def normalized_last(node: Any, dims: int) -> tuple[str, ...]:
    features = len(node._saved_normalized_shape)
    return (SAMPLES,) * (dims - features) + (FEATURES,) * features


def product(first: int, left: str, right: str) -> Understand:
    """Return what understands a matrix product. Its operands have the numbers ``first`` and ``first + 1``."""

    def understand(reader: Reader, node: Any, shape: Shape) -> Dimensions:
        by_right = _is_parameter(reader, node, first + 1, right)
        if not by_right and (len(shape) == 1 or not _is_parameter(reader, node, first, left)):
            _refuse_pairs(node, node.next_functions[first : first + 2], shape)
            raise NotUnderstoodError(f"{node.name()} multiplies by what is no parameter, and may mix samples")
        if first and node.next_functions[0][0] is not None and not _is_parameter(reader, node, 0, "self"):
            raise NotUnderstoodError(f"{node.name()} adds what is no parameter")
        rows = (SAMPLES,) if len(shape) == 1 else (SAMPLES, FEATURES) if by_right else (FEATURES, SAMPLES)
        return Dimensions((FEATURES,) * (len(shape) - len(rows)) + rows, shape)

    return understand


def distances(reader: Reader, node: Any, shape: Shape) -> Dimensions:
    """Refuse distances between two sets of points."""
    _refuse_pairs(node, node.next_functions[:2], shape)
    raise NotUnderstoodError(f"{node.name()} compares what may be samples")


def _refuse_pairs(node: Any, operands: Sequence[Any], shape: Shape) -> None:
    """Raise SamplesMixedError for a square matrix if both operands are computed from parameters."""
    square = len(shape) > 1 and shape[-1] == shape[-2] > 1 and set(shape[:-2]) <= {1}
    if square and all(child is not None and not is_weight(child) for child, _ in operands):
        raise SamplesMixedError(f"{node.name()} makes a matrix of {shape[-2]} by {shape[-1]} pairs")
