"""Find the parameters that a backward call reaches, and the lines of the forward pass that used them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

from torch import nn

from gradgate.autograd_graph import Graph, ops
from gradgate.checker.recording._node_lines import line_of
from gradgate.checker.recording._registry import Parameters
from gradgate.events import Ids, Site
from gradgate.torch_compat import node_number

_MOST_USES = 48
_MOST_OLD = 256  # old nodes whose lines are counted
_MOST_NODES = 20_000  # larger graphs are not searched for paths

Uses = tuple[tuple[int, Site], ...]
"""Parameter numbers, each with a line."""


class Reached:
    """The leaves that one backward call reaches.

    Args:
        graph: the graph of the call.
        parameters: all known parameters. New ones get a number.
        chosen: ids of the tensors in the call's ``inputs=``; None if there are none.

    Attributes:
        numbers: parameter numbers, by the id of the leaf. Leaves that aren't parameters are absent.
        others: how many leaves are neither an nn.Parameter nor held by an optimizer.
        ids: the parameters among the leaves.
    """

    def __init__(self, graph: Graph, parameters: Parameters, chosen: Container[int] | None) -> None:
        self.graph = graph
        self.numbers: dict[int, int] = {}
        self.others = 0
        for key, leaf in graph.leaves.items():
            if chosen is not None and key not in chosen:
                continue
            number = parameters.numbers.known(leaf)
            plain = not isinstance(leaf, nn.Parameter)
            self.others += plain and number not in parameters.owners
            # A plain leaf that is reached twice counts as a parameter.
            if not plain or (number is None and parameters.met.known(leaf)):
                number = parameters.number(leaf)
            elif number is None:
                parameters.met.add(leaf, True)
            if number is not None:
                self.numbers[key] = number
        parameters.reached.update(self.numbers.values())
        self.ids = parameters.same(self.numbers.values())
        self._same = parameters.same
        owners = parameters.owners
        self._owners = {leaf: frozenset(owners.get(number, ())) for leaf, number in self.numbers.items()}

    @functools.cached_property
    def _users(self) -> dict[int, list[Any]]:
        users = self.graph.users
        return {id(leaf): users[node] for node, leaf in self.graph.leaf_nodes.items() if node in users}

    def unowned_uses(self) -> Uses:
        """Return each parameter that no optimizer holds, with the line that used the parameter."""
        unowned = [leaf for leaf, owners in self._owners.items() if not owners][:_MOST_USES]
        lines = ((self.numbers[leaf], map(line_of, self._users.get(leaf, ()))) for leaf in unowned)
        return tuple((number, next(sites, ())) for number, sites in lines)

    def after_others(self) -> Ids:
        """Return the parameters that were combined with values computed from another optimizer's parameters.

        If no optimizer holds a parameter, every optimizer counts as another optimizer. A plain tensor may be data.
        It counts only if an optimizer's parameters are also used between the tensor and the loss.
        """
        graph, owners = self.graph, self._owners
        kinds = {kind: 1 << place for place, kind in enumerate(set(owners.values()))}
        if len(kinds) < 2 or len(graph.nodes) > _MOST_NODES:
            return frozenset()
        known = {node: id(leaf) for node, leaf in graph.leaf_nodes.items() if id(leaf) in owners}
        before = graph.behind({node: kinds[owners[leaf]] for node, leaf in known.items()})
        above = {child: node for node in graph.in_order for child in graph.following[node]}
        # Nodes followed by a use of an optimizer's parameters, on the way to the loss.
        between: set[Any] = set()
        users = {node for leaf, kind in owners.items() if kind for node in self._users.get(leaf, ())}
        for node in graph.in_order:
            if node in users or node in between:
                between.update(graph.following[node])
        combined = set()
        for leaf, mine in owners.items():
            others = sum(bit for kind, bit in kinds.items() if kind and not kind & mine)
            plain = not isinstance(graph.leaves[leaf], nn.Parameter)
            for node in self._users.get(leaf, ()):
                while node in above and node.name() in ops.WEIGHT_PARTS:
                    node = above[node]
                inputs = [child for child in graph.following[node] if child not in graph.leaf_nodes]
                if plain and (node not in between or not any(before[child] & others for child in inputs)):
                    continue  # the tensor may be data
                if before[node] & others:
                    combined.add(self.numbers[leaf])
        return self._same(combined)

    def first_uses(self) -> Uses:
        """Return parameters, ordered by their last uses in the forward pass, with the lines of their first uses."""
        first = []
        for leaf, number in self.numbers.items():
            users = sorted(self._users.get(leaf, ()), key=node_number.use)
            if users:
                first.append((node_number.use(users[-1]), number, line_of(users[0])))
        return tuple((number, site) for _, number, site in sorted(first, key=lambda entry: entry[:2]))


def older_than(nodes: Iterable[Any], number: int) -> tuple[int, Site]:
    """Return how many nodes have a number below ``number``, and the line that made most of those nodes."""
    old = [node for node in nodes if node_number.use(node) < number]
    lines = Counter(line for node in old[:_MOST_OLD] if (line := line_of(node)))
    return len(old), lines.most_common(1)[0][0] if lines else ()
