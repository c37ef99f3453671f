"""The graph behind a loss: its nodes, its leaves, and the paths between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


def walk(*roots: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield every node of a graph once, nearest to the roots first, with the nodes that it passes gradient to."""
    queue = list(dict.fromkeys(root for root in roots if root is not None))
    seen = set(queue)
    for node in queue:  # grows during the loop
        following = [child for child, _ in node.next_functions if child is not None]
        yield node, following
        for child in following:
            if child not in seen:
                seen.add(child)
                queue.append(child)


def roots_of(tensors: Iterable[Any]) -> list[Any]:
    """Return the nodes that made tensors, each once."""
    nodes = (tensor.grad_fn for tensor in tensors if isinstance(tensor, Tensor))
    return list(dict.fromkeys(node for node in nodes if node is not None))


class Graph:
    """The graph behind one tensor or several.

    A graph keeps its nodes alive, and what custom functions keep in them.

    Attributes:
        roots: the nodes that made the tensors.
        following: every node, with the nodes that it passes gradient to. Nodes near the roots come first.
        nodes: the nodes that operations made, which are all but those of the leaves.
        leaf_nodes: the nodes of the leaves, with the leaf that each one adds gradient to.
        leaves: the tensors that receive a gradient, by their ids.
    """

    def __init__(self, tensors: Tensor | Iterable[Any]) -> None:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given = [tensor for tensor in given if isinstance(tensor, Tensor)]
        self.roots = roots_of(given)
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
        for tensor in given:
            if tensor.grad_fn is None and tensor.requires_grad:
                self.leaves[id(tensor)] = tensor

    def __contains__(self, leaf: Tensor) -> bool:
        """Return whether a leaf receives a gradient."""
        return id(leaf) in self.leaves

    def has(self, name: str) -> bool:
        """Return whether the graph has a node of this name."""
        return any(node.name() == name for node in self.following)

    def users(self) -> dict[int, list[Any]]:
        """Return the nodes that use each leaf, by the leaf's id. The node nearest to the roots comes first."""
        users: dict[int, list[Any]] = {}
        for node, following in self.following.items():
            for child in following:
                if child in self.leaf_nodes:
                    users.setdefault(id(self.leaf_nodes[child]), []).append(node)
        return users

    def in_order(self) -> list[Any]:
        """Return all nodes in topological order: each one follows all nodes that pass gradient to it."""
        waiting = Counter(child for following in self.following.values() for child in following)
        ready = [root for root in self.roots if not waiting[root]]
        order = []
        while ready:
            node = ready.pop()
            order.append(node)
            for child in self.following[node]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        return order

    def paths(self) -> dict[int, int]:
        """Return the number of paths to each leaf, by the leaf's id."""
        paths = Counter(self.roots)
        for node in self.in_order():
            for child in self.following[node]:
                paths[child] += paths[node]
        found = {id(leaf): paths[node] for node, leaf in self.leaf_nodes.items()}
        return {leaf: found.get(leaf, 1) for leaf in self.leaves}

    def path_to(self, leaf: Tensor) -> list[Any]:
        """Return the nodes of a shortest path from the roots to a leaf, or an empty list if there is none."""
        before: dict[Any, Any] = {}  # the first one found is nearest to the roots
        for node, following in self.following.items():
            for child in following:
                before.setdefault(child, node)
        path = [node for node, variable in self.leaf_nodes.items() if variable is leaf]
        while path and path[-1] not in self.roots:
            path.append(before[path[-1]])
        return path[::-1]
