"""Finds codes that a loss uses without a straight-through estimator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph._nodes import (
    ERRORS,
    LEAF,
    RESHAPES,
    TRANSPOSES,
    inputs,
    named,
    only_input,
    through,
)
from gradgate.autograd_graph._walk import Graph

_LOOKUPS = named("Embedding Index IndexSelect Mm", "01")
_MOVED = RESHAPES | TRANSPOSES | named("Permute")
_MOST = 8  # distances that are compared


def unpassed_codes(graph: Graph) -> Iterator[tuple[Any, Any]]:
    """Yield the distance of codes that a loss also uses elsewhere, and the encoder's output, which only it trains.

    Such a loss has the distance twice: from the codes to the output as a constant, and the other way round.

    Source: van den Oord et al., "Neural Discrete Representation Learning", 2017, section 3.2.
    """
    distances = [(node, *pair) for node in graph.nodes if (pair := _to_data(node)) is not None][:_MOST]
    for (first, codes, gap), (second, output, other) in permutations(distances, 2):
        lookup = through(codes, _MOVED)
        if lookup.name() not in _LOOKUPS or all(each.name() != LEAF for each in inputs(lookup)):
            continue
        if gap.numel() != other.numel() or not torch.equal(
            *(each.reshape(-1).abs() for each in (gap, other))
        ):
            continue
        leaves = set(Graph(output).leaf_nodes)
        if gap.any() and lookup in _below(graph, first) and leaves.isdisjoint(_below(graph, second)):
            yield first, output


def _to_data(node: Any) -> tuple[Any, Tensor] | None:
    """Return the value that a node compares with a constant, and their difference; otherwise None."""
    value = only_input(node)
    if node.name() in ERRORS and value is not None and node._saved_self.shape == node._saved_target.shape:
        return value, node._saved_self - node._saved_target
    if node.name() == "PowBackward0" and value.name() == "SubBackward0" and only_input(value) is not None:
        return only_input(value), node._saved_self
    return None


def _below(graph: Graph, without: Any) -> set[Any]:
    """Return the nodes that the loss reaches without passing through a node."""
    found, todo = {without}, [*graph.roots]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += graph.following[node]
    return found
