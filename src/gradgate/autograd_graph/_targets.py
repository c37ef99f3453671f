"""Reads what a value is compared with or added to: a target, the value itself, or a constant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from gradgate.autograd_graph._nodes import (
    ERRORS,
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
_SUMS = frozenset({"AddBackward0", "SubBackward0"})
_DIFFERENCES = ERRORS | {"SubBackward0"}
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


def cancelled(node: Any, users: Mapping[Any, list[Any]]) -> list[Tensor]:
    """Return the leaves behind a value that a node adds and subtracts, such as x in ``x + (y - x)``.

    The value's two gradients cancel, so these leaves get none through the node. Leaves that are also behind the
    node's other values are left out, and so is a target that is compared with the value itself:
    ``returns = (rewards - x) + x``. Copies count as the value. ``users`` is :meth:`Graph.users`.
    """
    signs: dict[tuple[Any, int], float] = defaultdict(float)
    # In (loc + noise) - loc, the log-probability of a sample, the gradient of the location is zero on purpose.
    inner_names = frozenset({"SubBackward0"} if node.name() == "AddBackward0" else ())
    for edge, sign in _summands(node, _SUMS | ERRORS):
        parts = _summands(edge[0], inner_names) or [(edge, 1.0)]
        for (below, output), inner in parts:
            signs[through(below, _COPIES), output] += sign * inner
    both = {value for (value, _), sign in signs.items() if sign == 0}
    if not both:
        return []
    kept = {id(leaf) for value, _ in signs if value not in both for leaf in Graph(value).leaves.values()}
    compared = (
        other for user in users.get(node, []) if user.name() in _DIFFERENCES for other in inputs(user)
    )
    if not both.isdisjoint(compared):
        return []
    return [leaf for value in both for leaf in Graph(value).leaves.values() if id(leaf) not in kept]


def _summands(node: Any, names: frozenset[str]) -> list[tuple[tuple[Any, int], float]]:
    """Return the operands of a sum, difference or error that have a graph, each with its sign or factor."""
    if node.name() not in names:
        return []
    second = float(getattr(node, "_saved_alpha", 1)) * (1 if node.name() == "AddBackward0" else -1)
    signs = zip(node.next_functions[:2], (1.0, second), strict=True)
    return [(edge, sign) for edge, sign in signs if edge[0] is not None]


def sums_with_constants(*roots: Any) -> Iterator[Any]:
    """Yield the sums below the roots of which one side has no graph, if only linear operations come after them."""
    for node, following in walk(*roots, beyond=_LINEAR):
        if node.name() in SUMS and len(following) == 1:
            yield node


def _origin(node: Any) -> Any:
    """Return the node that made the values, before reshapes, sigmoid and clamping."""
    return through(node, _MONOTONE)
