"""Where in a graph a gradient turns to zero, infinity or NaN on its way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.checker.recording._node_lines import line_of
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._samples import largest
from gradgate.events import Site
from gradgate.torch_compat import node_number

_INFINITE = float("inf")


class Probe:
    """Hooks on the nodes of one graph, for one backward pass. They change nothing and keep no node alive.

    Args:
        recorder: what is done in hooks is not watched.
        graph: of a backward call.
        numbers: of those leaves that are parameters, by the leaf's id.

    Attributes:
        broken: the first operation that took finite gradients and returned others: its line, its name, and the
            parameters behind it.
    """

    def __init__(self, recorder: Recorder, graph: Graph, numbers: dict[int, int]) -> None:
        self._recorder = recorder
        self.broken: tuple[Site, str, frozenset[int]] | None = None
        self._killed: list[
            tuple[Site, int]
        ] = []  # lines that turned gradients to zero, and what is behind each
        self._alive = 0  # parameters that some path gave a gradient, as bits: several may cancel
        self._numbers = list(numbers.values())
        bits = {leaf: 1 << place for place, leaf in enumerate(numbers)}
        behind: dict[Any, int] = {}  # a node: the parameters behind it, as bits
        for node in reversed(graph.in_order()):
            leaf = graph.leaf_nodes.get(node)
            found = 0 if leaf is None else bits.get(id(leaf), 0)
            for child in graph.following[node]:
                found |= behind[child]
            behind[node] = found
        self._handles = []
        for node in graph.nodes:
            inputs = [behind.get(child, 0) for child, _ in node.next_functions]
            leaves = [
                behind.get(child, 0) if child in graph.leaf_nodes else 0 for child, _ in node.next_functions
            ]
            hook = self._hook(node.name(), line_of(node), behind[node], inputs, leaves)
            self._handles.append(node.register_hook(hook))

    def remove(self) -> None:
        """Remove the hooks, for a graph that is used again."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str, line: Site, behind: int, behind_inputs: list[int], leaves: list[int]) -> Any:
        def look(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            with self._recorder.working():
                sizes = list(map(_size, inputs))
                for size, leaf in zip(sizes, leaves, strict=False):
                    self._alive |= leaf if size else 0
                if all(size is None or 0 < size < _INFINITE for size in sizes):
                    return
                given = max((size for size in map(_size, outputs) if size is not None), default=0.0)
                for size, behind_input in zip(sizes, behind_inputs, strict=False):
                    if size is None:
                        continue
                    if size == 0 and given > 0:
                        self._killed.append((line, behind_input))
                    elif self.broken is None and not size < _INFINITE and given < _INFINITE:
                        self.broken = (line, name, frozenset(self._parameters(behind)))

        return look

    def _parameters(self, bits: int) -> Iterator[int]:
        return (number for place, number in enumerate(self._numbers) if bits >> place & 1)

    def zeroed(self) -> Iterator[tuple[int, Site]]:
        """Yield parameters behind an operation that turned a gradient to zero, those nearest to the root first."""
        for line, bits in self._killed:
            for number in self._parameters(bits & ~self._alive):
                yield number, line


@torch.no_grad()
def first_nan(graph: Graph) -> tuple[Site, str] | None:
    """Return the first operation of the forward pass that returned NaN, as far as the graph has kept its inputs.

    If a NaN came from outside the graph, this is the line that used it.
    """
    for node in sorted(graph.nodes, key=node_number.use):
        for name, (child, _) in zip(("_saved_self", "_saved_other"), node.next_functions, strict=False):
            if _is_nan(node, name):
                return (child is not None and line_of(child)) or line_of(node), node.name()
        if _is_nan(node, "_saved_result"):
            return line_of(node), node.name()
    return None


def _is_nan(node: Any, name: str) -> bool:
    try:
        saved = getattr(node, name, None)
        return isinstance(saved, Tensor) and saved.is_floating_point() and bool(saved.isnan().any())
    except RuntimeError:  # freed, or changed in place since
        return False


def _size(gradient: Any) -> float | None:
    """Return the largest absolute value: 0 if all values are zero, infinity or NaN if not all are finite."""
    if (
        not isinstance(gradient, Tensor)
        or gradient.is_sparse
        or gradient.is_complex()
        or not gradient.numel()
    ):
        return None
    try:
        return largest(gradient)
    except (RuntimeError, NotImplementedError):  # a dtype or device without it
        return None
