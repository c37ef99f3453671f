"""Finds operations below a loss that mix samples, by sending the gradients of two items back through the graph.

If samples are kept apart, the gradients of two items never meet in a tensor that was computed from samples. A node
is a function of a gradient. The nodes are called one after another, which runs no hooks and no module, and leaves
the graph as it was. This takes about as long as two backward passes.

All gradients meet in tensors that samples share: in parameters, and in position embeddings, which are broadcast.
So a meeting counts only if it reaches **data**: an operand without a graph, of a layer, with a row for each item. A
meeting by broadcasting counts only if a reduction follows, such as a mean over the batch.

A branch ends at a node that can't be called without side effects: a function written in Python, and a node whose
saved tensors are packed, as in a checkpoint. Its result counts as data. Meetings at and below an index or a product
with a constant matrix don't count, because the edges of a graph connect parts of a single sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._inputs import edges, inputs, leaf_at, through
from gradgate.autograd_graph._items import check_items, sample_dims
from gradgate.autograd_graph._losses import NotUnderstoodError, shape_of, without_smoothing
from gradgate.autograd_graph._walk import Graph, reachable
from gradgate.torch_compat import call_node, is_packed, node_zeros

Shape: TypeAlias = "tuple[int, ...]"
Edge: TypeAlias = "tuple[Any, int]"
Pair: TypeAlias = "tuple[Tensor, Tensor]"
"""The gradients of two items at one tensor."""

_BEFORE_ITEMS = ops.REDUCTIONS | ops.RESHAPES | ops.SCALINGS
_AFTER_ENTRY = ops.VIEWS | {ops.ADD}
_ABOVE_ROWS = ops.RESHAPES | ops.SAME_VALUES | {ops.LOG_SOFTMAX, ops.SLICE}


class Mixing(NamedTuple):
    """An operation that mixes samples.

    Attributes:
        node: the name of its node.
        shape: the shape of its result.
    """

    node: str
    shape: Shape


def mixing(term: Any) -> Mixing | None:
    """Return an operation that mixes samples below one term of a loss, or None if none is known. Synchronizes.

    Args:
        term: the node of a term.
    """
    node = loss_over_items(term)
    if node is None or call_node.lost:
        return None
    try:
        with torch.no_grad():
            return _first_mixing(dict(_seeds(node)), _row_counts(node))
    except (
        NotUnderstoodError,
        AttributeError,
        RuntimeError,
    ):  # an unknown node, or no memory for its gradient
        return None


def loss_over_items(term: Any) -> Any:
    """Return the node at which a term has a row for each item: a torch loss, or the mean or sum of items."""
    node = without_smoothing(through(without_smoothing(term), _BEFORE_ITEMS))
    if node is not None and node.name() in ops.LOSSES:
        return node
    if term is None or term.name() not in ops.TOTALS:
        return None
    try:
        check_items(term)
    except (NotUnderstoodError, AttributeError):
        return None
    return term


def _seeds(node: Any) -> Iterator[tuple[Edge, Pair]]:
    """Yield the inputs of a loss, each with the gradients of its first and its last item."""
    for edge in edges(node):
        if edge[0] is None or not (shape := shape_of(*edge)):
            continue
        # Otherwise the second dimension may hold samples too, unless it holds classes or the channels of an image.
        fallback = [0] if len(shape) > 3 else [dim for dim in range(len(shape)) if not _is_class(node, dim)]
        dims = sample_dims(edge) or fallback
        if shape[dims[0]] < 2:
            continue
        pair = node_zeros(*edge), node_zeros(*edge)
        for zeros, item in zip(pair, (slice(1), slice(-1, None)), strict=True):
            part = zeros[tuple(item if dim in dims else slice(None) for dim in range(len(shape)))]
            part += torch.arange(1, part.numel() + 1, device=part.device).reshape(part.shape)
        yield edge, pair


def _is_class(node: Any, dim: int) -> bool:
    return dim == 1 and node.name() not in ops.ELEMENT_LOSSES


def _row_counts(node: Any) -> set[int]:
    """Return the lengths of the first dimension that the items of a loss have, before and after a reshape."""
    counts: set[int] = set()
    for child, output in edges(node):
        while child is not None and (shape := shape_of(child, output)):
            counts.add(shape[0])
            if child.name() not in _ABOVE_ROWS:
                break
            child, output = edges(child)[0]
    return counts - {1}


class _Meeting(NamedTuple):
    """The operation at which the gradients of two items met, and whether it only shared a value among samples."""

    node: Any
    shared: bool


def _first_mixing(seeds: dict[Edge, Pair], rows: set[int]) -> Mixing | None:
    """Send the gradients of two items back through a graph; return the first operation that mixes samples.

    Args:
        seeds: the gradients at the inputs of the loss.
        rows: the lengths that the first dimension of data may have.
    """
    graph = Graph([node for node, _ in seeds])
    waiting: dict[Any, dict[int, Pair]] = {}
    for (node, output), pair in seeds.items():
        waiting.setdefault(node, {})[output] = pair
    meetings: dict[Any, _Meeting] = {}
    routed: set[Any] = set()  # nodes at and below which meetings don't count
    users: dict[Any, Any] = {}
    for node in graph.in_order:
        pairs = waiting.pop(node, None)
        if pairs is None or node.name() == ops.LEAF:
            continue
        met_here = any(map(_meet, pairs.values()))
        passed = None if _is_entry(node) else _passed_on(node, pairs)
        if passed is None:  # a layer of data, or a node that can't be called
            ends = _without_steps(node, pairs).values()
            met_here = any(_meet(pair) and bool((pair[0].sum() + pair[1].sum()).isfinite()) for pair in ends)
        if met_here and node not in meetings and node not in routed and node in users:
            # The sum of two gradients meets, or the steps of a recurrent layer do.
            meetings[node] = _Meeting(node if node.name() in ops.RECURRENT else users[node], False)
        met = meetings.get(node)
        if passed is None and met_here and met and not met.shared and _has_rows(graph, node, rows):
            return Mixing(met.node.name(), shape_of(met.node))
        is_routed = met is None and (node in routed or _routes(node))
        for (child, output), broadcast, pair in passed or ():
            if is_routed:
                routed.add(child)
            else:
                users.setdefault(child, node)
                if _meet(pair) and (child not in meetings or meetings[child].shared):
                    reduced = node.name() in ops.REDUCTIONS
                    meeting = met or _Meeting(node, broadcast or node.name() in ops.REPEATS)
                    meetings[child] = _Meeting(node, False) if meeting.shared and reduced else meeting
            earlier = waiting.setdefault(child, {}).get(output)
            waiting[child][output] = pair if earlier is None else (earlier[0] + pair[0], earlier[1] + pair[1])
    return None


def _meet(pair: Pair) -> bool:
    return bool(torch.logical_and(*pair).any())


def _has_rows(graph: Graph, node: Any, rows: set[int]) -> bool:
    """Return whether data has one row for each row of the loss, and more than one sample."""

    def above(inner: Any) -> list[Any]:
        return [user for user in graph.users.get(inner, ()) if user.name() in _AFTER_ENTRY]

    shapes = [shape_of(inner) for inner in reachable(node, following=above)]
    if node.name() == ops.CONVOLUTION:
        return shapes[0][0] in rows
    deep = [shape for shape in shapes if len(shape) > 2]
    if any(1 in shape[:2] for shape in deep) or (node.name() == ops.EMBEDDING and not deep):
        return False
    return bool({shape[0] for shape in shapes if shape} & rows) or any(shape[1] in rows for shape in deep)


def _is_entry(node: Any) -> bool:
    """Return whether a node is a layer whose input is data, so that nothing but parameters is below it."""
    if node.name() in ops.EMBEDDINGS:
        return True
    place = ops.LAYERS.get(node.name(), 0 if node.name() in ops.RECURRENT else None)
    return place is not None and node.next_functions[place][0] is None and bool(inputs(node))


def _without_steps(node: Any, pairs: dict[int, Pair]) -> dict[int, Pair]:
    """Return the gradients of a node, those of a recurrent layer's output added up over its steps."""
    if node.name() not in ops.RECURRENT or 0 not in pairs:
        return pairs
    dim = int("Mkldnn" not in node.name() and node._saved_batch_first)  # oneDNN gets the steps first
    a, b = pairs[0]
    return {**pairs, 0: (a.abs().sum(dim), b.abs().sum(dim))}


def _routes(node: Any) -> bool:
    """Return whether data decides which rows a node adds up: an index, or a product with a constant matrix."""
    factor = ops.FACTORS.get(node.name())
    return node.name() in ops.INDICES or (factor is not None and node.next_functions[factor][0] is None)


def _passed_on(node: Any, pairs: dict[int, Pair]) -> list[tuple[Edge, bool, Pair]] | None:
    """Return the edges below a node, each with whether its tensor was broadcast, and with its two gradients.

    Returns None if the node can't be called without side effects.
    """
    below = edges(node)
    if isinstance(node, BackwardCFunction):
        alone = len(below) == 1 and below[0][0] is not None and pairs.keys() == {0}
        return [(below[0], False, pairs[0])] if alone and shape_of(*below[0]) == shape_of(node) else None
    if is_packed(node):
        return None
    both = [call_node.use(node, {output: pair[item] for output, pair in pairs.items()}) for item in (0, 1)]
    pairs.clear()  # to save memory
    passed = []
    for edge, first, last in zip(below, *both, strict=False):
        given = last if first is None else first
        if edge[0] is None or given is None or leaf_at(edge[0]) is not None:
            continue
        a, b = (torch.zeros_like(given) if gradient is None else gradient for gradient in (first, last))
        shape = shape_of(*edge)
        passed.append((edge, given.shape != shape, (a.sum_to_size(shape), b.sum_to_size(shape))))
    return passed
