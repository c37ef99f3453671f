"""Find the last layers whose outputs a loss pushes in one direction, such as a critic's in an actor's loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import Graph, inputs, ops, reachable
from gradgate.torch_compat import saved_tensor

_WITH_TARGET = ops.ERRORS | ops.BINARY_CROSS_ENTROPIES
_MOST_VALUES = 1 << 22  # larger targets are not read


def driven(graph: Graph) -> Iterator[Tensor]:
    """Yield the parameters of last layers whose outputs a loss pushes in one direction, whatever the data.

    Examples are ``-q(state, action).mean()``, and a cross entropy with one target for all samples. Where the output
    meets any other tensor without a graph, that tensor is data.
    """

    def leaves(node: Any) -> list[Tensor]:
        following = graph.following[node]
        turned = [below for child in following if child.name() == ops.TRANSPOSED for below in inputs(child)]
        return [graph.leaf_nodes[child] for child in (*following, *turned) if child in graph.leaf_nodes]

    def below(node: Any) -> list[Any]:
        return graph.following[node] if not leaves(node) and _has_no_data(node) else []

    for node in reachable(*graph.roots, following=below):
        yield from leaves(node)


def _has_no_data(node: Any) -> bool:
    kind = node.name()
    if all(child is not None for child, _ in node.next_functions):
        return kind in ops.IN_ONE_DIRECTION or kind in ops.RESHAPES
    name = "target" if kind in _WITH_TARGET else "other" if kind in ops.PRODUCTS else ""
    other = saved_tensor.use(node, name) if name else None
    return (
        isinstance(other, Tensor) and 0 < other.numel() <= _MOST_VALUES and bool((other == other.max()).all())
    )
