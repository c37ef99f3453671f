"""Finds functions of a mean, such as the root of a mean squared error, which are not means over items."""

from __future__ import annotations

from typing import Any

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._inputs import inputs
from gradgate.autograd_graph._losses import inputs_of, shape_of
from gradgate.autograd_graph._walk import walk

_LAYERS = {**ops.LAYERS, ops.EMBEDDING: 0}  # an operand without a graph is data


def functions_of_means(root: Any) -> list[Any]:
    """Return the nodes that apply a nonlinear function to a number computed from the data.

    The search follows sums, differences and products below the root. A product with a number that depends on
    parameters alone, such as a learned weight, is linear in the other factor.

    Args:
        root: the node of a loss without dimensions.
    """
    functions = []
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or shape_of(node) != ():
            continue
        seen.add(node)
        terms = inputs_of(node)
        if terms is not None:
            waiting += [term.node for term in terms]
            continue
        from_data = [child for child in inputs(node) if _reaches_data(child)]
        if node.name() in ops.PRODUCTS:
            divisor = node.next_functions[1][0] if node.name() == ops.DIV else None
            if len(from_data) > 1 or (divisor is not None and divisor in from_data):
                functions.append(node)
            else:
                waiting += from_data
        elif from_data and _is_nonlinear(node):
            functions.append(node)
    return functions


def _is_nonlinear(node: Any) -> bool:
    """Return whether a node is a nonlinear function of one number, or a norm or deviation of several numbers."""
    child, output = node.next_functions[0]
    single = shape_of(child, output) == ()
    return node.name() in (ops.NONLINEAR if single else ops.NORMS)


def _reaches_data(root: Any) -> bool:
    """Return whether a number was computed from data, and not from parameters alone."""
    for node, _ in walk(root):
        name = node.name()
        if name in ops.LOSSES or name == ops.COMPILED:
            return True
        first = _LAYERS.get(name)
        if first is not None and any(child is None for child, _ in node.next_functions[first : first + 2]):
            return True
    return False
