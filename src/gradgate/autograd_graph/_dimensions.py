"""Tracks through operations whether each dimension of a tensor holds samples or the model's features.

A mean over a tensor is a mean over the items of a batch if each element comes from one sample, and if every sample
gives the same number of elements in any micro-batch. A :class:`GraphReader` keeps track of this.
It raises :class:`NotUnderstoodError` where an operation may mix samples, drop some, or repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch.autograd.function import BackwardCFunction

from gradgate.autograd_graph._losses import NotUnderstoodError, shape_of, signed

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


Understand: TypeAlias = "Callable[[GraphReader, Any, Shape], Dimensions]"
"""Returns the dimensions of a node's output, given its shape."""


class GraphReader:
    """Reads a graph from a loss down to the layers, each node once.

    Args:
        table: for each node name, the function that reads the node; None for an elementwise operation.
    """

    def __init__(self, table: Mapping[str, Understand | None]) -> None:
        self._table = table
        self._known: dict[tuple[Any, int], Dimensions] = {}
        self._depth = 0

    def dimensions(self, edge: tuple[Any, int]) -> Dimensions:
        """Return the dimensions of the tensor on an edge of the graph."""
        while (understand := self._table.get(edge[0].name(), _unknown)) is None:
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


def _unknown(reader: GraphReader, node: Any, shape: Shape) -> Dimensions:
    if not isinstance(node, BackwardCFunction):
        raise NotUnderstoodError(f"{node.name()} is not known to keep the items of a batch apart")
    return Dimensions((SAMPLES, *[OUTPUT] * (len(shape) - 1))[: len(shape)], shape, opaque=True)


def along(
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


def dims_of(node: Any, count: int) -> list[int]:
    """Return the dimensions along which a node works. If it names none, return all ``count`` dimensions."""
    dims = getattr(node, "_saved_dim", None)
    dims = () if dims is None else dims if isinstance(dims, Iterable) else (dims,)
    return [signed(dim) % count for dim in dims if count] or list(range(count))
