"""Finds functions of a mean, such as the root of a mean squared error, which are not means over items."""

from __future__ import annotations

from typing import Any

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._inputs import inputs
from gradgate.autograd_graph._losses import inputs_of, shape_of
from gradgate.autograd_graph._walk import reachable

_LAYERS = {**ops.LAYERS, ops.EMBEDDING: 0}  # an operand without a graph is data


def functions_of_means(root: Any) -> list[Any]:
    """Return the nodes that apply a nonlinear function to a number computed from the data.

    The search follows sums, differences and products below the root. A product with a number that depends on
    parameters alone, such as a learned weight, is linear in the other factor.

    Args:
        root: the node of a loss without dimensions.
    """
    return [node for node in reachable(root, following=_linear_in) if _is_nonlinear(node)]


def _linear_in(node: Any) -> list[Any]:
    """Return the inputs that a number is a linear function of, apart from those that depend on parameters alone."""
    terms = inputs_of(node) if shape_of(node) == () else ()
    if terms is not None:
        return [term.node for term in terms if term.node is not None]
    from_data = _from_data(node)
    divisor = node.next_functions[1][0] if node.name() == ops.DIV else None
    return from_data if node.name() in ops.PRODUCTS and from_data != [divisor] and len(from_data) == 1 else []


def _is_nonlinear(node: Any) -> bool:
    """Return whether a number is a nonlinear function of numbers from the data, or a norm or deviation."""
    if shape_of(node) != () or _linear_in(node):
        return False
    from_data = _from_data(node)
    if not from_data or node.name() in ops.PRODUCTS:
        return bool(from_data)
    single = shape_of(*node.next_functions[0]) == ()
    return node.name() in (ops.NONLINEAR if single else ops.NORMS)


def _from_data(node: Any) -> list[Any]:
    return [child for child in inputs(node) if _reaches_data(child)]


def _reaches_data(root: Any) -> bool:
    """Return whether a number was computed from data, and not from parameters alone."""
    for node in reachable(root):
        name = node.name()
        if name in ops.LOSSES or name == ops.COMPILED:
            return True
        first = _LAYERS.get(name)
        if first is not None and any(child is None for child, _ in node.next_functions[first : first + 2]):
            return True
    return False
