"""Finds values that a loss compares with themselves, or that it adds and subtracts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph, inputs, ops, through
from gradgate.checker.recording.graph._broadcasts import node_shape


def cancelled(node: Any, users: Mapping[Any, list[Any]]) -> tuple[list[Tensor], bool]:
    """Return the leaves behind a value that a node adds and subtracts, such as x in ``x + (y - x)``.

    Also returns whether y has a gradient. The value's two gradients cancel, so these leaves get none through the
    node. Leaves that are also behind the node's other values are left out, and so is a target that is compared with
    the value itself: ``returns = (rewards - x) + x``. Copies count as the value. ``users`` is :meth:`Graph.users`.
    """
    signs: dict[tuple[Any, int], float] = defaultdict(float)
    # A sample's log-probability contains (loc + noise) - loc: the gradient of the location is zero on purpose.
    inner_names = frozenset({ops.SUB} if node.name() == ops.ADD else ())
    for edge, sign in _summands(node, ops.SUMS | ops.ERRORS):
        parts = _summands(edge[0], inner_names) or [(edge, 1.0)]
        for (below, output), inner in parts:
            signs[through(below, ops.PLAIN_COPIES), output] += sign * inner
    both = {value for (value, _), sign in signs.items() if sign == 0}
    if not both:
        return [], False
    kept = {id(leaf) for value, _ in signs if value not in both for leaf in Graph(value).leaves.values()}
    compared = (
        other for user in users.get(node, []) if user.name() in ops.DIFFERENCES for other in inputs(user)
    )
    if not both.isdisjoint(compared):
        return [], False
    lost = [leaf for value in both for leaf in Graph(value).leaves.values() if id(leaf) not in kept]
    return lost, bool(kept)


def _summands(node: Any, names: frozenset[str]) -> list[tuple[tuple[Any, int], float]]:
    """Return those operands of a sum, difference or error that have a graph, each with its sign or factor."""
    if node.name() not in names:
        return []
    second = float(getattr(node, "_saved_alpha", 1)) * (1 if node.name() == ops.ADD else -1)
    signs = zip(node.next_functions[:2], (1.0, second), strict=True)
    return [(edge, sign) for edge, sign in signs if edge[0] is not None]


def sides_are_equal(node: Any) -> bool | None:
    """Return whether both sides of a ratio or distance are equal; None unless both sides have a gradient."""
    name, below = node.name(), node
    if name != ops.DIV:
        below = inputs(node)[0]
    if below.name() not in {ops.SUB, ops.DIV} or len(inputs(below)) != 2:
        return None
    if math.prod(node_shape(node, 0)) < 2:
        return None
    if name == ops.DIV:
        return bool(torch.equal(node._saved_self, node._saved_other))
    if name == ops.EXP:
        return bool((node._saved_result == 1).all())
    return not bool(node._saved_self.any())
