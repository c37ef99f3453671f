"""Find the weights of a model's last layers in a loss's graph, trained or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradgate.autograd_graph._walk import Graph
from gradgate.torch_compat import saved_tensor

# By node, the name under which it saves the weight. A weight that isn't trained is in no leaf.
_WEIGHTS = {
    "AddmmBackward0": "mat2",
    "MmBackward0": "mat2",
    "LinearBackward0": "weight",
    "ConvolutionBackward0": "weight",
}


def last_weights(graph: Graph) -> Iterator[Tensor]:
    """Yield the weights that the last products of a loss multiply values with a graph by.

    A product whose result is multiplied by, or added to, a trained tensor is not the last one. Weights that hooks
    have packed, as within a checkpoint, are left out.
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
        weight = saved_tensor.use(node, name) if name is not None else None
        if isinstance(weight, Tensor):
            yield weight
