"""Steps from a node of a graph to its inputs."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import _nodes as ops


def edges(node: Any) -> list[tuple[Any, int]]:
    """Return the node and the output behind each input of a node; the node is None if the input has no graph.

    With ``find_unused_parameters``, DistributedDataParallel connects all outputs of a model to one node, which
    passes each gradient through unchanged. An edge to that node leads on to what is behind the same output.
    """
    behind = list(node.next_functions)
    for place, (child, output) in enumerate(behind):
        while type(child).__name__ == ops.DDP_SINK:
            behind[place] = child, output = child.next_functions[output]
    return behind


def inputs(node: Any) -> list[Any]:
    """Return the nodes of those inputs of a node that have a graph."""
    return [child for child, _ in edges(node) if child is not None]


def only_input(node: Any) -> Any:
    """Return the only input that has a graph; None if no input or several have one."""
    with_graph = inputs(node)
    return with_graph[0] if len(with_graph) == 1 else None


def through(node: Any, names: Container[str]) -> Any:
    """Go down from a node, always to the only input. Return the first node whose name isn't in ``names``."""
    while node is not None and node.name() in names and (below := only_input(node)) is not None:
        node = below
    return node


def leaf_at(node: Any) -> Tensor | None:
    """Return the leaf that a node adds gradient to, directly or through a transposition."""
    name = None if node is None else node.name()
    if name in ops.TRANSPOSES:
        node = node.next_functions[0][0]
        name = None if node is None else node.name()
    leaf: Tensor | None = node.variable if name == ops.LEAF else None
    return leaf
