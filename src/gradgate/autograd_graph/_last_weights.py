"""Find the weights of a model's last layers in a loss's graph, trained or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradgate.autograd_graph._walk import Graph

# By node, the attribute that holds the weight. A weight that isn't trained is in no leaf.
_WEIGHTS = {
    "AddmmBackward0": "_saved_mat2",
    "MmBackward0": "_saved_mat2",
    "LinearBackward0": "_saved_weight",
    "ConvolutionBackward0": "_saved_weight",
}


def last_weights(graph: Graph) -> Iterator[Tensor]:
    """Yield the weights that the last products of a loss multiply values with a graph by.

    A product whose result is multiplied by, or added to, a trained tensor is not the last one.
    """
    todo, seen = list(graph.roots), set[Any]()
    for node in todo:  # grows during the loop
        if node in seen:
            continue
        seen.add(node)
        name = _WEIGHTS.get(node.name())
        following = graph.following.get(node, [])
        if name is None and not any(child in graph.leaf_nodes for child in following):
            todo += following
        weight = getattr(node, name, None) if name is not None else None
        if isinstance(weight, Tensor):
            yield weight
