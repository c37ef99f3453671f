"""Find values that a loss combines, often by mistake, such as a prediction and its own target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import (
    Graph,
    compared_items,
    finds_each_item,
    inputs,
    only_input,
    ops,
    reachable,
    through,
)
from gradgate.checker.recording._node_lines import line_of, made_in_one_call
from gradgate.checker.recording._registry import Parameters
from gradgate.checker.recording.graph import (
    after_reward,
    are_apart,
    broadcast_at,
    cancelled,
    compared_views,
    compared_with_own_averages,
    detached_in_one_term,
    is_half,
    node_shape,
    normalized_twice,
    not_log_probabilities,
    pulled_teacher,
    repeated_errors,
    row,
    sides_are_equal,
    sums_with_constants,
    trained_target,
)
from gradgate.events import Combined, Ids, Site

_MOST_NODES = 5_000
_MOST_BELOW = 64
_PASSED = ops.RESHAPES | {ops.STACK}
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
            if name in ops.DIFFERENCES:
                yield from self._own_target(node)
            if name == ops.MUL:
                yield from self._advantage(node)
            if (given := not_log_probabilities(node)) is not None:
                below = Graph(node).nodes if given == "probabilities" else ()
                made = next((line_of(inner) for inner in below if inner.name() == ops.SOFTMAX), ())
                yield replace(self._event(given, node), made=made)
            if name == ops.XLOGY:
                yield from self._teacher(node)
            if name in ops.ERRORS:
                yield from self._separate_target(node)
            if name in _COMPARISONS and (equal := sides_are_equal(node)) is not None:
                compared[line_of(node)].append((node, equal))
            if name in ops.ELEMENTWISE or name == ops.EXPAND:
                yield from self._broadcast(node)
        yield from self._trained_targets()
        yield from self._cancelled()
        for error, value in detached_in_one_term(self._graph):
            yield self._event("detached once", error, self._ids(value))
        nodes, roots = self._graph.nodes, self._graph.roots
        kinds: dict[str, Iterable[Any]] = {
            "normalized twice": filter(None, map(normalized_twice, nodes)),
            "float16": islice(filter(is_half, nodes), 1),
            "views": compared_views(*roots),
            "constant": sums_with_constants(*roots),
            "added again": repeated_errors(*roots),
        }
        for how, nodes_of_kind in kinds.items():
            yield from (self._event(how, node) for node in nodes_of_kind)
        if averages := compared_with_own_averages(self._graph):
            yield self._event("averaged weights", averages[0], self._ids(averages))
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

    def _leaves(self, node: Any) -> set[Any]:
        return self._graph.leaf_nodes.keys() & self._graph.below(node)

    def _own_target(self, node: Any) -> Iterator[Combined]:
        """Find a target like ``reward + gamma * q(next_state)`` that is compared with ``q(state)``."""
        sides = inputs(node)
        if len(sides) != 2:
            return
        for value, target in (sides, sides[::-1]):
            inner = after_reward(target)
            if inner is None or prod(node_shape(value, 0)) > prod(node_shape(target, 0)):
                continue  # one number for all samples is a mean of the values, not a target
            value = row(value, ops.RESHAPES)
            if (ids := self._ids(inner)) and ids == self._ids(value) and are_apart(inner, value):
                yield self._event("own target", through(target, ops.RESHAPES), ids)
                return

    def _teacher(self, node: Any) -> Iterator[Combined]:
        """Find t in ``kl_div``, t * log(t) - t * input, if the parameters behind t get no other gradient."""
        target, *others = inputs(node)
        if others != [target]:
            return
        if self._leaves(target).isdisjoint(self._graph.below(without=target)):
            yield self._event("teacher", node, self._ids(target))
        elif pulled_teacher(node, self._users):
            yield self._event("pulled teacher", node, self._ids(target))

    def _separate_target(self, node: Any) -> Iterator[Combined]:
        """Find the second argument of an error if the parameters behind it get no other gradient."""
        if len(inputs(node)) != 2:
            return
        prediction, target = inputs(node)
        others = self._graph.below(prediction) | self._graph.below(without=node)
        if self._leaves(target).isdisjoint(others):
            yield self._event("trained target", node, self._ids(target))

    def _trained_targets(self) -> Iterator[Combined]:
        """Find binary cross entropies whose target is computed from parameters that the input also depends on.

        Two views that are each compared with the other are left out.
        """
        trained = [(node, *pair) for node in self._graph.nodes if (pair := trained_target(node)) is not None]
        pairs = [(self._ids(value), self._ids(target)) for _, value, target, _ in trained]
        for (node, _, _, filled), (value, target) in zip(trained, pairs, strict=True):
            mutual = pairs.count((target, value)) > (value == target)
            if value & target and (filled or target - value) and not mutual:
                yield self._event("labels", node, target)

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

    def _advantage(self, node: Any) -> Iterator[Combined]:
        """Find ``log_prob * (returns - value)`` if a squared error in the same loss trains ``value``."""
        sides = inputs(node)
        if len(sides) != 2:
            return
        for logarithm, advantage in (sides, sides[::-1]):
            value = self._value_in(advantage)
            scored = value is not None and any("Log" in inner.name() for inner in Graph(logarithm).nodes)
            if scored and (ids := self._ids(value)):
                yield self._event("advantage", node, ids)
                return

    def _value_in(self, advantage: Any) -> Any:
        """Return ``value`` of an advantage ``data - value``, if the loss also has a squared error of ``value``."""

        def below(node: Any) -> list[Any]:
            elementwise = node.name() in ops.ELEMENTWISE or node.name() in ops.RESHAPES
            return inputs(node) if elementwise and not _is_difference_from_data(node) else []

        for node in filter(
            _is_difference_from_data, islice(reachable(advantage, following=below), _MOST_BELOW)
        ):
            value = through(only_input(node), ops.RESHAPES)
            if self._is_squared(value) or self._is_squared(node) or self._is_squared_again(value):
                return value
        return None

    def _is_squared(self, value: Any) -> bool:
        """Return whether the loss squares a value, or the difference between the value and data."""

        def users(node: Any) -> list[Any]:
            return self._users.get(node, [])

        def above(node: Any) -> list[Any]:
            return [user for user in users(node) if user.name() in _PASSED or _is_difference_from_data(user)]

        return any(_squares(user, node) for node in reachable(value, following=above) for user in users(node))

    def _is_squared_again(self, value: Any) -> bool:
        """Return whether a second run of the network that computed ``value`` is also compared with data."""
        ids, shape = self._ids(value), node_shape(value, 0)
        compared = (inputs(node) for node in self._graph.nodes if node.name() in ops.ERRORS)
        again = [through(below[0], ops.RESHAPES) for below in compared if len(below) == 1]
        return bool(ids) and any(
            other.name() == value.name() and node_shape(other, 0) == shape and self._ids(other) == ids
            for other in again
        )

    def _broadcast(self, node: Any) -> Iterator[Combined]:
        """Find shapes (N, 1) and (N,) that broadcast, unless the function makes the column: ``x[:, None]``."""
        above, shape, column = broadcast_at(node, self._users) or (None, (), None)
        if above is not None and (column is None or not made_in_one_call(column, node)):
            how = "broadcast" + " factor" * (node.name() == ops.MUL)
            yield self._event(how, node if line_of(node) else above, self._ids(node), shape)


def _is_difference_from_data(node: Any) -> bool:
    return node.name() == ops.SUB and only_input(node) is not None


def _squares(node: Any, value: Any) -> bool:
    name = node.name()
    square = name == ops.POW and float(node._saved_exponent) == 2
    return square or name in ops.ERRORS or (name == ops.MUL and inputs(node) == [value, value])
