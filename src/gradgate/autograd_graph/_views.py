"""Recognizes losses that only compare a network's output for one input with its output for another."""

from __future__ import annotations

from typing import Any

from gradgate.autograd_graph._nodes import ERRORS, PRODUCTS, RESHAPES, SUMS, inputs, named, through
from gradgate.autograd_graph._walk import Graph

_POWERS = named("Pow Abs LinalgVectorNorm")
_TO_THE_LOSS = named("Mean Sum Neg Rsub Sqrt", "01") | named("Add Sub Mul Div", "01") | RESHAPES | _POWERS


def compared_views(*roots: Any) -> list[Any]:
    """Return the nodes at which a loss compares two views, if it does nothing else; otherwise [].

    One side is the encoder's output. The other is the output of the encoder and a predictor, for another input. If
    both sides have a gradient, a constant output minimizes such a loss.

    Source: Chen and He, "Exploring Simple Siamese Representation Learning", 2021, section 4.1.
    """
    found: dict[Any, None] = {}
    todo = [(root, False) for root in roots]
    while todo:
        node, squared = todo.pop()
        name, below = node.name(), inputs(node)
        if len(below) == 1 and name in _TO_THE_LOSS:
            todo.append((below[0], squared or name in _POWERS))
        elif len(below) == 2 and name in SUMS and not squared:
            todo += [(child, False) for child in below]
        elif len(below) == 2 and _is_distance(node, below, squared) and _is_asymmetric(*below):
            found[node] = None
        else:
            return []
    return list(found)


def _is_distance(node: Any, sides: list[Any], squared: bool) -> bool:
    """Return whether a node compares two values: an error, a squared difference, or a cosine."""
    name = node.name()
    if name in ERRORS or (squared and name == "SubBackward0"):
        return True
    return name in PRODUCTS and all(through(side, RESHAPES).name() == "DivBackward0" for side in sides)


def _is_asymmetric(first: Any, second: Any) -> bool:
    """Return whether two values share only leaves, and one depends on all leaves of the other and on more."""
    mine, theirs = Graph(first), Graph(second)
    leaves, others = set(mine.leaves), set(theirs.leaves)
    return set(mine.nodes).isdisjoint(theirs.nodes) and (leaves < others or others < leaves)
