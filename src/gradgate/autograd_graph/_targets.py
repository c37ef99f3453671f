"""Reads what a value is compared with or added to: a target, a copy of a parameter, or a constant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradgate.autograd_graph._nodes import (
    ERRORS,
    LEAF,
    PRODUCTS,
    RESHAPES,
    SAME_VALUES,
    SUMS,
    inputs,
    named,
    through,
)
from gradgate.autograd_graph._walk import Graph, walk

_CROSS_ENTROPIES = named("BinaryCrossEntropy BinaryCrossEntropyWithLogits")
_MONOTONE = SAME_VALUES | named("Sigmoid") | named("Clamp ClampMin", "01")
_COPIES = named("Clone Alias View ToCopy")
_LINEAR = SUMS | PRODUCTS | RESHAPES | named("Mean Sum Neg", "01")
_FILLED = ("IndexPutBackward0", "CopySlices")


def trained_target(node: Any) -> tuple[Any, Any, bool] | None:
    """Return the input and target of a binary cross entropy, if both have a graph, and whether data was filled in.

    Data was filled in if the target is a tensor of data into which values with a graph were written. Returns None
    for an entropy, whose target is computed from the values that it is compared with.
    """
    if node.name() not in _CROSS_ENTROPIES:
        return None
    value, target = (node.next_functions[place][0] for place in (0, 1))
    if value is None or target is None or _origin(value) in Graph(target).following:
        return None
    return value, target, _origin(target).name() in _FILLED


def compares_with_own_copy(node: Any) -> bool:
    """Return whether a node takes the difference of a leaf and a copy of the leaf, whose gradients cancel."""
    if node.name() not in ("SubBackward0", *ERRORS):
        return False
    sides = inputs(node)
    if len(sides) != 2 or float(getattr(node, "_saved_alpha", 1)) != 1:
        return False
    first, second = (through(side, _COPIES) for side in sides)
    return first is second and first.name() == LEAF


def sums_with_constants(*roots: Any) -> Iterator[Any]:
    """Yield the sums below the roots of which one side has no graph, if only linear operations come after them."""
    for node, following in walk(*roots, beyond=_LINEAR):
        if node.name() in SUMS and len(following) == 1:
            yield node


def _origin(node: Any) -> Any:
    """Return the node that made the values, before reshapes, sigmoid and clamping."""
    return through(node, _MONOTONE)
