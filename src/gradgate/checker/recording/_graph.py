"""A walk through the graph of a loss, from the root to the leaves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradgate.checker.recording._node_lines import line_of
from gradgate.events import Site
from gradgate.torch_compat import node_number

_LEAF = "torch::autograd::AccumulateGrad"


@dataclass
class Walk:
    """What a graph holds. Nodes are held as long as this is: drop it before the backward runs."""

    leaves: list[Tensor] = field(default_factory=list)
    users: dict[int, list[Any]] = field(default_factory=dict)  # index of a leaf: the nodes that use it
    nodes: int = 0
    old_nodes: int = 0
    old_site: Site = ()
    order: list[Any] = field(default_factory=list)


def roots_of(tensors: Any) -> list[Any]:
    """Return the graph nodes of a tensor or of several."""
    several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return [tensor.grad_fn for tensor in several if isinstance(tensor, Tensor) and tensor.grad_fn is not None]


def walk(roots: list[Any], *, older_than: int = -1) -> Walk:
    """Visit every node once. Nodes numbered below ``older_than`` are counted as old."""
    found = Walk()
    seen: dict[Any, int] = {}  # nodes, and for leaves their index
    todo = list(roots)
    seen.update(dict.fromkeys(roots, -1))
    old_lines: Counter[Site] = Counter()
    while todo:
        node = todo.pop()
        found.order.append(node)
        number = node_number.use(node)
        if number < older_than:
            found.old_nodes += 1
            if found.old_nodes <= 256:
                old_lines[line_of(node)] += 1
        for child, _ in node.next_functions:
            if child is None:
                continue
            index = seen.get(child)
            if index is None:
                if child.name() == _LEAF:
                    index = seen[child] = len(found.leaves)
                    found.leaves.append(child.variable)
                else:
                    seen[child] = -1
                    todo.append(child)
                    continue
            if index >= 0:
                found.users.setdefault(index, []).append(node)
    found.nodes = len(found.order)
    lines = [(count, site) for site, count in old_lines.items() if site]
    found.old_site = max(lines, key=lambda pair: pair[0])[1] if lines else ()
    return found
