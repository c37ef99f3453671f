"""What a loss's graph leads to, and through how many paths."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor


class Graph:
    """The graph behind a loss: every node once, those nearer to the loss first."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss
        self._before: dict[Any, Any] = {}  # a node: the next one on a shortest way to the loss
        self.leaves: dict[int, Any] = {}  # id of a leaf: its node
        if loss.grad_fn is None:
            return
        self._before[loss.grad_fn] = None
        queue = [loss.grad_fn]
        for node in queue:  # grows meanwhile
            if hasattr(node, "variable"):
                self.leaves[id(node.variable)] = node
            for following, _ in node.next_functions:
                if following is not None and following not in self._before:
                    self._before[following] = node
                    queue.append(following)

    def reaches(self, leaf: Tensor) -> bool:
        """Say whether gradient comes to a leaf."""
        return id(leaf) in self.leaves or leaf is self.loss

    def paths(self) -> dict[int, int]:
        """Return the number of paths that lead to each leaf, by its id."""
        waiting = Counter(following for node in self._before for following, _ in node.next_functions)
        ways: Counter[Any] = Counter({self.loss.grad_fn: 1})
        ready = [] if self.loss.grad_fn is None else [self.loss.grad_fn]
        while ready:
            node = ready.pop()
            for following, _ in node.next_functions:
                if following is None:
                    continue
                ways[following] += ways[node]
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)
        return {leaf: ways[node] for leaf, node in self.leaves.items()}

    def path_to(self, leaf: Tensor) -> list[Any]:
        """Return the nodes of a shortest path, from the loss to the leaf; empty where there is none."""
        node = self.leaves.get(id(leaf))
        path = []
        while node is not None:
            path.append(node)
            node = self._before[node]
        return path[::-1]

    def has(self, name: str) -> bool:
        """Say whether there is a node of this name."""
        return any(node.name() == name for node in self._before)
