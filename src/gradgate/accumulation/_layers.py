"""Where the model begins: the layers, at which a walk through the graph of a loss ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn
from torch.autograd.function import BackwardCFunction

from gradgate.accumulation._dimensions import FREE, ITEMS, OUTPUT, REPEATED, Dimensions
from gradgate.autograd_graph import NotUnderstoodError, SamplesMixedError, shape_of
from gradgate.torch_compat import view_base

LEAF = "torch::autograd::AccumulateGrad"
_DEEPEST, _MOST = 64, 512  # operations on one path, and in all

Shape: TypeAlias = "tuple[int, ...]"
Understand: TypeAlias = "Callable[[Walk, Any, Shape], Dimensions]"
"""Returns what is known of what a node put out, which has this shape."""


class Walk:
    """One walk from a loss down to the layers. Each node is understood once.

    Args:
        table: by the name of a node, what understands it.
    """

    def __init__(self, table: Mapping[str, Understand]) -> None:
        self._table = table
        self._known: dict[tuple[Any, int], Dimensions] = {}
        self._depth = 0

    def dimensions(self, edge: tuple[Any, int]) -> Dimensions:
        """Return what is known of what an edge of the graph brings."""
        known = self._known.get(edge)
        if known is not None:
            return known
        node, output = edge
        understand = self._table.get(node.name())
        if understand is None:
            if not isinstance(node, BackwardCFunction):
                raise NotUnderstoodError(f"{node.name()} is not known to keep the items of a batch apart")
            understand = _opaque
        if self._depth >= _DEEPEST or len(self._known) >= _MOST:
            raise NotUnderstoodError("too many operations lie between the loss and the model's last layer")
        self._depth += 1
        try:
            found = self._known[edge] = understand(self, node, shape_of(node, output))
        finally:
            self._depth -= 1
        return found


def is_weight(node: Any) -> bool:
    """Say whether a node is a parameter, or its transpose."""
    if node is not None and node.name() == "TBackward0":
        node = node.next_functions[0][0]
    return node is not None and node.name() == LEAF and isinstance(node.variable, nn.Parameter)


def _opaque(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    return Dimensions((ITEMS, *[OUTPUT] * (len(shape) - 1))[: len(shape)], shape, opaque=True)


def leaf(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    if not isinstance(node.variable, nn.Parameter):
        raise NotUnderstoodError(f"a leaf of shape {list(shape)} is no nn.Parameter")
    return Dimensions((FREE,) * len(shape), shape, samples=False)


def _is_parameter(walk: Walk, node: Any, place: int, saved: str) -> bool:
    """Say whether an operand is made of parameters alone. A frozen one has no edge, but is saved."""
    edge = node.next_functions[place]
    if is_weight(edge[0]):  # the usual case, known without a walk
        return True
    if edge[0] is None:
        tensor = getattr(node, f"_saved_{saved}", None)
        base = None if tensor is None or view_base.lost else view_base(tensor)
        return isinstance(tensor if base is None else base, nn.Parameter)
    try:
        known = walk.dimensions(edge)
    except NotUnderstoodError:
        return False
    return not known.samples and REPEATED not in known.held


def product(first: int, left: str, right: str) -> Understand:
    """Return what understands a matrix product whose operands are the edges ``first`` and the next."""

    def understand(walk: Walk, node: Any, shape: Shape) -> Dimensions:
        by_right = _is_parameter(walk, node, first + 1, right)
        if not by_right and (len(shape) == 1 or not _is_parameter(walk, node, first, left)):
            _check_pairs(node, node.next_functions[first : first + 2], shape)
            raise NotUnderstoodError(f"{node.name()} multiplies by what is no parameter, and may mix samples")
        if first and node.next_functions[0][0] is not None and not _is_parameter(walk, node, 0, "self"):
            raise NotUnderstoodError(f"{node.name()} adds what is no parameter")
        rows = (ITEMS,) if len(shape) == 1 else (ITEMS, FREE) if by_right else (FREE, ITEMS)
        return Dimensions((FREE,) * (len(shape) - len(rows)) + rows, shape)

    return understand


def pairs(walk: Walk, node: Any, shape: Shape) -> Dimensions:
    """Refuse distances between two sets of points."""
    _check_pairs(node, node.next_functions[:2], shape)
    raise NotUnderstoodError(f"{node.name()} compares what may be samples")


def _check_pairs(node: Any, edges: Sequence[Any], shape: Shape) -> None:
    """Raise SamplesMixedError for as many rows as columns, both of them made of what is trained."""
    square = len(shape) > 1 and shape[-1] == shape[-2] > 1 and set(shape[:-2]) <= {1}
    if square and all(following is not None and not is_weight(following) for following, _ in edges):
        raise SamplesMixedError(f"{node.name()} makes a matrix of {shape[-2]} by {shape[-1]} pairs")


def layer(place: int, dims: Callable[[Any, int], tuple[str, ...]]) -> Understand:
    """Return what understands a layer whose weight is the edge ``place``."""

    def understand(walk: Walk, node: Any, shape: Shape) -> Dimensions:
        if not _is_parameter(walk, node, place, "weight"):
            raise NotUnderstoodError(f"the weight of {node.name()} is no parameter")
        return Dimensions(dims(node, len(shape)), shape)

    return understand


def features_last(node: Any, count: int) -> tuple[str, ...]:
    return (ITEMS,) * (count - 1) + (FREE,)


def samples_first(node: Any, count: int) -> tuple[str, ...]:
    return (ITEMS,) + (FREE,) * (count - 1)


def normalized_last(node: Any, count: int) -> tuple[str, ...]:
    features = len(node._saved_normalized_shape)
    return (ITEMS,) * (count - features) + (FREE,) * features
