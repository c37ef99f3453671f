"""The graph of a loss: its nodes, its leaves, and the paths between them.

:func:`walk` and :func:`reachable` visit a graph, or the part of it in which the caller says which nodes follow
one. :class:`Graph` keeps what they meet. Use these three rather than a loop over ``next_functions``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from gradgate.autograd_graph._inputs import inputs


def walk(
    *roots: Any, following: Callable[[Any], Iterable[Any]] = inputs
) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Yield each node that the roots lead to once, nearest to the roots first, with the nodes that follow it."""
    queue = list(dict.fromkeys(root for root in roots if root is not None))
    seen = set(queue)
    for node in queue:  # grows during the loop
        children = following(node)
        yield node, children
        for child in children:
            if child not in seen:
                seen.add(child)
                queue.append(child)


def reachable(*roots: Any, following: Callable[[Any], Iterable[Any]] = inputs) -> Iterator[Any]:
    """Yield each node that the roots lead to once, nearest to the roots first."""
    return (node for node, _ in walk(*roots, following=following))


def roots_of(roots: Any) -> list[Any]:
    """Return the graph nodes of one or several tensors or nodes, each once. Other objects have none."""
    nodes = (root.grad_fn if isinstance(root, Tensor) else root for root in _listed(roots))
    return list(dict.fromkeys(node for node in nodes if hasattr(node, "next_functions")))


def _listed(roots: Any) -> list[Any]:
    return [roots] if isinstance(roots, Tensor) or hasattr(roots, "next_functions") else list(roots)


class Graph:
    """The graph of one or several tensors.

    A graph keeps its nodes alive, including the objects that custom functions store in them.

    Args:
        roots: a tensor or a node, or several of either.

    Attributes:
        roots: the given nodes, and the nodes of the given tensors.
        following: every node, with the nodes that it passes gradient to. Nodes near the roots come first.
        nodes: the nodes that operations made, which are all but those of the leaves.
        leaf_nodes: the nodes of the leaves, with the leaf that each one adds gradient to.
        leaves: the tensors that receive a gradient, by their ids.
    """

    def __init__(self, roots: Any) -> None:
        self.roots = roots_of(roots)
        self.following = dict(walk(*self.roots))
        self.nodes: list[Any] = []
        self.leaves: dict[int, Tensor] = {}
        self.leaf_nodes: dict[Any, Tensor] = {}
        for node, following in self.following.items():
            leaf = None if following else getattr(node, "variable", None)
            if leaf is None:
                self.nodes.append(node)
            else:
                self.leaf_nodes[node] = self.leaves[id(leaf)] = leaf
        for root in _listed(roots):
            if isinstance(root, Tensor) and root.grad_fn is None and root.requires_grad:
                self.leaves[id(root)] = root

    def __contains__(self, leaf: Tensor) -> bool:
        """Return whether a leaf receives a gradient."""
        return id(leaf) in self.leaves

    def has(self, name: str) -> bool:
        """Return whether the graph has a node of this name."""
        return any(node.name() == name for node in self.following)

    @cached_property
    def users(self) -> dict[Any, list[Any]]:
        """The nodes that use each node's result. The node nearest to the roots comes first."""
        users: dict[Any, list[Any]] = {}
        for node, following in self.following.items():
            for child in following:
                users.setdefault(child, []).append(node)
        return users

    def below(self, *nodes: Any, without: Any = None) -> set[Any]:
        """Return what ``nodes``, by default the roots, reach without passing through the node ``without``."""
        starts = nodes or self.roots
        return set(reachable(*starts, following=lambda node: () if node is without else self.following[node]))

    @cached_property
    def in_order(self) -> list[Any]:
        """All nodes in topological order: each one follows all nodes that pass gradient to it."""
        order: list[Any] = []
        waiting = Counter(child for following in self.following.values() for child in following)
        ready = [root for root in self.roots if not waiting[root]]
        while ready:
            node = ready.pop()
            order.append(node)
            for child in self.following[node]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        return order

    def behind(self, bits: Mapping[Any, int]) -> dict[Any, int]:
        """Return each node's bit mask: its own in ``bits``, or else the union of its inputs' masks."""
        masks: dict[Any, int] = {}
        for node in reversed(self.in_order):
            masks[node] = bits.get(node, 0)
            for child in () if node in bits else self.following[node]:
                masks[node] |= masks[child]
        return masks

    def paths(self) -> dict[int, int]:
        """Return the number of paths to each leaf, by the leaf's id."""
        paths = Counter(self.roots)
        for node in self.in_order:
            for child in self.following[node]:
                paths[child] += paths[node]
        counts = {id(leaf): paths[node] for node, leaf in self.leaf_nodes.items()}
        return {leaf: counts.get(leaf, 1) for leaf in self.leaves}

    def path_to(self, leaf: Tensor) -> list[Any]:
        """Return the nodes of a shortest path from the roots to a leaf, or an empty list if there is none."""
        path = [node for node, variable in self.leaf_nodes.items() if variable is leaf]
        while path and path[-1] not in self.roots:
            path.append(self.users[path[-1]][0])
        return path[::-1]
