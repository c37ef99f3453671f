"""Reads what a value is compared with or added to: a target, itself, averaged weights, or a constant."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph, inputs, inputs_of, only_input, ops, reachable, through
from gradgate.checker.recording.graph._broadcasts import node_shape

_MONOTONE = ops.SAME_VALUES | ops.FROM_BELOW | {ops.SIGMOID}
_LINEAR = ops.SUMS | ops.PRODUCTS | ops.RESHAPES | ops.MEANS_AND_SUMS | {ops.NEG}
_COMPARISONS = ops.DIFFERENCES | ops.BINARY_CROSS_ENTROPIES | ops.MATRIX_PRODUCTS | {ops.MUL}
_SCALED = ops.RESHAPES | ops.PRODUCTS
_AFTER_DIFFERENCE = ops.SAME_VALUES | ops.MEANS_AND_SUMS | ops.POWERS
_MOST_PATHS = 200


def trained_target(node: Any) -> tuple[Any, Any, bool] | None:
    """Return a binary cross entropy's input and target if both have a graph, and whether the target holds data too.

    It does if values with a graph were written into a tensor of data. Returns None for an entropy, whose target is
    computed from the values that it is compared with.
    """
    if node.name() not in ops.BINARY_CROSS_ENTROPIES:
        return None
    value, target = (node.next_functions[place][0] for place in (0, 1))
    if value is None or target is None or _origin(value) in Graph(target).following:
        return None
    return value, target, _origin(target).name() in ops.FILLED


def pulled_teacher(node: Any, users: Mapping[Any, list[Any]]) -> bool:
    """Return whether the target of a ``kl_div`` node is the softmax of logits that a cross entropy also trains.

    False if both sides share leaves, or if another divergence has them the other way round.
    """
    target = inputs(node)[0]
    softmax = through(target, ops.RESHAPES)
    products = [user for user in users.get(target, []) if user.name() == ops.MUL]
    students = {
        leaf
        for product in products
        for side in inputs(product)
        if side is not target
        for leaf in Graph(side).leaves
    }
    if softmax.name() != ops.SOFTMAX or not students or students & Graph(target).leaves.keys():
        return False
    if any(other.name() == node.name() and students & Graph(other).leaves.keys() for other in users):
        return False
    logits = through(softmax, _SCALED | {ops.SOFTMAX})
    return any(
        log_softmax.name() == ops.LOG_SOFTMAX
        and through(log_softmax, _SCALED | {ops.LOG_SOFTMAX}) is logits
        and any(user.name() in ops.CLASS_LOSSES for user in above)
        for log_softmax, above in users.items()
    )


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


def sums_with_constants(*roots: Any) -> Iterator[Any]:
    """Yield sums with one side that has no graph, if only linear operations lie between them and the roots."""
    for node in reachable(*roots, following=lambda node: inputs(node) if node.name() in _LINEAR else ()):
        if node.name() in ops.SUMS and only_input(node) is not None:
            yield node


def repeated_errors(*roots: Any) -> Iterator[Any]:
    """Yield each error that the loss adds twice, with different weights, if both of its values have a graph."""
    weights: dict[Any, tuple[Any, float]] = {}
    todo = [(root, 1.0) for root in roots]
    for _ in range(_MOST_PATHS):
        if not todo:
            return
        node, weight = todo.pop(0)
        terms = inputs_of(node)
        for child, op, number in terms or ():
            factor = 1.0 if number is None else abs(float(number))
            if child is not None and factor:
                todo.append((child, weight * factor if op == "mul" else weight / factor))
        if terms is None and (error := _error(node)) is not None:
            other, earlier = weights.setdefault(error, (node, weight))
            if other is not node and not math.isclose(weight, earlier, rel_tol=1e-6):
                yield node


def _error(node: Any) -> Any:
    """Return a key of an error, such as a mean square: equal keys mean equal errors. None for other nodes."""
    operations = []
    while node is not None and node.name() in _AFTER_DIFFERENCE:
        operations.append((node.name(), _details(node, "exponent dim ord")))
        node = only_input(node)
    if node is None or node.name() not in ops.DIFFERENCES or len(inputs(node)) != 2:
        return None
    sides = frozenset(node.next_functions[:2])
    return node.name(), _details(node, "reduction beta delta alpha"), tuple(operations), sides


def _details(node: Any, names: str) -> str:
    return str([getattr(node, f"_saved_{name}", None) for name in names.split()])


def _origin(node: Any) -> Any:
    """Return the node that made a node's values, ignoring reshapes, sigmoid and clamping."""
    return through(node, _MONOTONE)


def compared_with_own_averages(graph: Graph) -> list[Any]:
    """Return the nodes that average a leaf with data, if their network is compared with the network of the leaf.

    The weights of a mean teacher are such averages: ``0.9 * weights.detach() + 0.1 * parameter``.
    """
    averages = {node: leaf for node in graph.nodes if (leaf := _averaged_with_data(node)) is not None}
    if not averages:
        return []
    weights = averages.keys() | graph.leaf_nodes.keys()
    # Two bits for each leaf: its value is used as it is, or in averages.
    plain = {leaf: 1 << 2 * place for place, leaf in enumerate(graph.leaf_nodes)}
    behind = graph.behind(plain | {node: plain[leaf] << 1 for node, leaf in averages.items()})
    every = sum(plain.values())
    for node in reversed(graph.in_order):
        sides = graph.following[node]
        if node.name() not in _COMPARISONS or len(sides) != 2:
            continue
        if any(through(side, ops.SAME_VALUES) in weights for side in sides):
            continue  # a layer's weight, or a penalty on the weights
        used = [(behind[side] & every, behind[side] >> 1 & every) for side in sides]
        first, second = ((alone & ~averaged, averaged & ~alone) for alone, averaged in used)
        if both := (first[1] & second[0]) | (first[0] & second[1]):
            return [average for average, leaf in averages.items() if plain[leaf] & both]
    return []


def _averaged_with_data(node: Any) -> Any:
    """Return the node of the leaf x if a node computes ``data + number * x`` and the number is below 1."""
    if node.name() not in ops.SUMS | ops.LERPS or only_input(node) is None:
        return None
    factor = 1.0
    if node.name() in ops.LERPS:
        node, factor = only_input(node), 0.5  # the weight isn't read
    while node.name() != ops.LEAF:
        try:
            terms = [term for term in inputs_of(node) or () if term.node is not None]
        except RuntimeError:  # an earlier backward call freed the graph
            return None
        if len(terms) != 1:
            return None
        ((node, op, number),) = terms
        number = 1.0 if number is None else float(number)
        factor = factor * number if op == "mul" or not number else factor / number
    return node if 0 < abs(factor) < 1 else None


def after_reward(target: Any) -> Any:
    """Return x if the target is ``data + numbers * x``, with one number per sample; otherwise None."""
    node = through(target, ops.RESHAPES)
    shape = node_shape(node, 0)
    if node.name() != ops.ADD or not shape or math.prod(shape) != shape[0]:
        return None
    product = through(only_input(node), ops.RESHAPES)
    node = row(product, ops.RESHAPES | {ops.MUL})
    return None if node is product or node.name() == ops.LEAF else node


def row(node: Any, names: frozenset[str]) -> Any:
    """Return the first node below the operations ``names``. For a row of a stack, ``values[t]``, return the row."""
    while node is not None and node.name() in names and (below := only_input(node)) is not None:
        if below.name() == ops.STACK and node.name() == ops.SELECT:
            same = node._saved_dim == below._saved_dim
            return below.next_functions[node._saved_index][0] or below if same else below
        node = below
    return node


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
