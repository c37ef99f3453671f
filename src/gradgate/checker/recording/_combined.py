"""Find values that a loss combines, often by mistake, such as a prediction and itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import Graph, compared_items, finds_each_item, ops
from gradgate.checker.recording._node_lines import line_of, made_in_one_call
from gradgate.checker.recording._registry import Parameters
from gradgate.checker.recording.graph import (
    broadcast_at,
    cancelled,
    is_half,
    normalized_twice,
    not_log_probabilities,
    sides_are_equal,
)
from gradgate.events import Combined, Ids, Site

_MOST_NODES = 5_000
_COMPARISONS = ops.POWERS | {ops.EXP, ops.DIV}


def combined(graph: Graph, backward: Site, parameters: Parameters) -> Iterator[Combined]:
    """Yield each suspicious combination in a loss."""
    if len(graph.nodes) <= _MOST_NODES:
        yield from _Reader(graph, backward, parameters).read()


class _Reader:
    """Reads the graph of one backward call."""

    def __init__(self, graph: Graph, backward: Site, parameters: Parameters) -> None:
        self._graph = graph
        self._backward = backward
        self._parameters = parameters
        self._users = graph.users

    def read(self) -> Iterator[Combined]:
        """Yield the combinations of each kind, starting with the nearest to the loss."""
        compared: dict[Site, list[tuple[Any, bool]]] = defaultdict(list)
        for node in self._graph.nodes:
            name = node.name()
            if (given := not_log_probabilities(node)) is not None:
                below = Graph(node).nodes if given == "probabilities" else ()
                made = next((line_of(inner) for inner in below if inner.name() == ops.SOFTMAX), ())
                yield replace(self._event(given, node), made=made)
            if name in _COMPARISONS and (equal := sides_are_equal(node)) is not None:
                compared[line_of(node)].append((node, equal))
            if name in ops.ELEMENTWISE or name == ops.EXPAND:
                yield from self._broadcast(node)
        yield from self._cancelled()
        nodes, roots = self._graph.nodes, self._graph.roots
        kinds: dict[str, Iterable[Any]] = {
            "normalized twice": filter(None, map(normalized_twice, nodes)),
            "float16": islice(filter(is_half, nodes), 1),
        }
        for how, nodes_of_kind in kinds.items():
            yield from (self._event(how, node) for node in nodes_of_kind)
        for node, _ in filter(None, map(compared_items, roots)):
            yield self._event("in batch" if finds_each_item(node) else "pairs", node)
        for pairs in compared.values():
            # A loop over all pairs may compare each item with itself, too.
            if all(equal for _, equal in pairs):
                yield self._event("itself", pairs[0][0])

    def _event(self, how: str, node: Any, ids: Ids | None = None, sizes: tuple[int, ...] = ()) -> Combined:
        return Combined(line_of(node), how, self._ids(node) if ids is None else ids, self._backward, sizes)

    def _ids(self, node: Any) -> Ids:
        return self._parameters.known(Graph(node).leaves.values())

    def _cancelled(self) -> Iterator[Combined]:
        """Find lines that add and subtract a value, so that parameters behind it get no gradient from there."""
        lines: dict[tuple[Site, bool], tuple[Any, list[Tensor]]] = {}
        for node in self._graph.nodes:
            leaves, others = cancelled(node, self._users)
            if leaves:
                lines.setdefault((line_of(node), others), (node, []))[1].extend(leaves)
        for (_, others), (node, leaves) in lines.items():
            if not others:
                yield self._event("cancelled", node, self._parameters.known(leaves))

    def _broadcast(self, node: Any) -> Iterator[Combined]:
        """Find shapes (N, 1) and (N,) that broadcast, unless the function makes the column: ``x[:, None]``."""
        above, shape, column = broadcast_at(node, self._users) or (None, (), None)
        if above is not None and (column is None or not made_in_one_call(column, node)):
            how = "broadcast" + " factor" * (node.name() == ops.MUL)
            yield self._event(how, node if line_of(node) else above, self._ids(node), shape)
