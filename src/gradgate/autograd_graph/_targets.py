"""Reads what a value is compared with: a target, a copy of a parameter, or the output of averaged weights."""

from __future__ import annotations

from typing import Any

from gradgate.autograd_graph._losses import inputs_of
from gradgate.autograd_graph._nodes import ERRORS, LEAF, SAME_VALUES, SUMS, inputs, named, only_input, through
from gradgate.autograd_graph._walk import Graph

_CROSS_ENTROPIES = named("BinaryCrossEntropy BinaryCrossEntropyWithLogits")
_MONOTONE = SAME_VALUES | named("Sigmoid") | named("Clamp ClampMin", "01")
_COPIES = named("Clone Alias View ToCopy")
_COMPARISONS = ERRORS | _CROSS_ENTROPIES | named("Sub Mul Mm Bmm")
_LERP = named("Lerp", "01")
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


def _origin(node: Any) -> Any:
    """Return the node that made the values, before reshapes, sigmoid and clamping."""
    return through(node, _MONOTONE)


def compared_with_own_averages(graph: Graph) -> list[Any]:
    """Return the nodes that average a leaf with data, if their network is compared with the network of the leaf.

    The weights of a mean teacher are such averages: ``0.9 * weights.detach() + 0.1 * parameter``.
    """
    averages = {node: leaf for node in graph.nodes if (leaf := _averaged_with_data(node)) is not None}
    weights = averages.keys() | graph.leaf_nodes.keys()
    # For each node, the leaves that it uses as they are, and those that it uses in averages.
    behind: dict[Any, tuple[frozenset[Any], frozenset[Any]]] = {}
    for node in reversed(graph.in_order()) if averages else ():
        if node in weights:
            leaf = frozenset([averages.get(node, node)])
            behind[node] = (frozenset(), leaf) if node in averages else (leaf, frozenset())
            continue
        below = [behind[child] for child in graph.following[node]]
        behind[node] = (
            frozenset().union(*(plain for plain, _ in below)),
            frozenset().union(*(averaged for _, averaged in below)),
        )
        if node.name() not in _COMPARISONS or len(below) != 2:
            continue
        if any(through(side, SAME_VALUES) in weights for side in graph.following[node]):
            continue  # a layer's weight, or a penalty on the weights
        (plain, averaged), (other_plain, other_averaged) = below
        both = ((averaged - plain) & (other_plain - other_averaged)) | (
            (plain - averaged) & (other_averaged - other_plain)
        )
        if both:
            return [average for average, leaf in averages.items() if leaf in both]
    return []


def _averaged_with_data(node: Any) -> Any:
    """Return the node of the leaf x if a node computes ``data + number * x`` and the number is below 1."""
    if node.name() not in SUMS | _LERP or only_input(node) is None:
        return None
    factor = 1.0
    if node.name() in _LERP:
        node, factor = only_input(node), 0.5  # the weight isn't read
    while node.name() != LEAF:
        try:
            found = [each for each in inputs_of(node) or () if each.node is not None]
        except RuntimeError:  # an earlier backward call freed the graph
            return None
        if len(found) != 1:
            return None
        ((node, op, number),) = found
        number = 1.0 if number is None else float(number)
        factor = factor * number if op == "mul" or not number else factor / number
    return node if 0 < abs(factor) < 1 else None
