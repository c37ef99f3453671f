"""Finds distances that train too few or too many of the values compared: codes without a gradient, or two views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph, inputs, only_input, ops, through

_MOST = 8  # distances that are compared
_TO_THE_LOSS = ops.MEANS_AND_SUMS | ops.LINEAR_ARITHMETIC | ops.RESHAPES | ops.POWERS | {ops.SQRT}


def detached_in_one_term(graph: Graph) -> Iterator[tuple[Any, Any]]:
    """Yield each error that trains both of its values, and the value that a second error trains alone.

    In the second error, the other value is a constant. The two values have separate leaves.
    """
    errors = [(node, sides) for node in graph.nodes if (sides := _compared(node))]
    alone = [(node, sides[0]) for node, sides in errors if len(sides) == 1][:_MOST]
    both = [(node, sides) for node, sides in errors if len(sides) == 2]
    for node, sides in both[:_MOST]:
        for other, value in alone:
            if value not in sides:
                continue
            gap = _gap(node).reshape(-1).abs()
            first, second = (set(Graph(side).leaf_nodes) for side in sides)
            if first.isdisjoint(second) and gap.any() and torch.equal(gap, _gap(other).reshape(-1).abs()):
                yield node, value
                break


def _compared(node: Any) -> list[Any]:
    """Return those inputs of an error or of a squared difference that have a graph; [] for other nodes."""
    if node.name() in ops.ERRORS:
        return inputs(node) if node._saved_self.shape == node._saved_target.shape else []
    below = only_input(node) if node.name() == ops.POW else None
    return inputs(below) if below is not None and below.name() == ops.SUB else []


def _gap(node: Any) -> Tensor:
    """Return the tensor that a node squares, or the difference of its inputs if it is an error such as MSE."""
    square = node.name() == ops.POW
    gap: Tensor = node._saved_self if square else node._saved_self - node._saved_target
    return gap


def compared_views(*roots: Any) -> list[Any]:
    """Return the nodes at which a loss compares two views, if it does nothing else; otherwise [].

    One side is the encoder's output. The other is the output of a predictor on top of the encoder, for another
    input. If both sides have a gradient, a constant output minimizes such a loss.

    Source: Chen and He, "Exploring Simple Siamese Representation Learning", 2021, section 4.1.
    """
    distances: dict[Any, None] = {}
    todo = [(root, False) for root in roots]
    while todo:
        node, squared = todo.pop()
        name, below = node.name(), inputs(node)
        if len(below) == 1 and name in _TO_THE_LOSS:
            todo.append((below[0], squared or name in ops.POWERS))
        elif len(below) == 2 and name in ops.SUMS and not squared:
            todo += [(child, False) for child in below]
        elif len(below) == 2 and _is_distance(node, below, squared) and _is_asymmetric(*below):
            distances[node] = None
        else:
            return []
    return list(distances)


def _is_distance(node: Any, sides: list[Any], squared: bool) -> bool:
    """Return whether a node compares two values: an error, a squared difference, or a cosine."""
    name = node.name()
    if name in ops.ERRORS or (squared and name == ops.SUB):
        return True
    return name in ops.PRODUCTS and all(through(side, ops.RESHAPES).name() == ops.DIV for side in sides)


def _is_asymmetric(first: Any, second: Any) -> bool:
    """Return whether two values share only leaves, and one depends on all leaves of the other and on more."""
    leaves, others = set(Graph(first).leaves), set(Graph(second).leaves)
    return (leaves < others or others < leaves) and are_apart(first, second)


def are_apart(first: Any, second: Any) -> bool:
    """Return whether two values share no node except leaves. If so, the network ran twice."""
    return set(Graph(first).nodes).isdisjoint(Graph(second).nodes)
