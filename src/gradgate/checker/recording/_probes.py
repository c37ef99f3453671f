"""Where in a graph a gradient turns to zero, or to inf or nan, on its way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.checker.recording._graph import Walk
from gradgate.checker.recording._node_lines import line_of
from gradgate.checker.recording._recorder import Recorder
from gradgate.events import Site
from gradgate.torch_compat import node_number


class Probe:
    """Hooks on the nodes of one graph, for one backward pass. Nothing is changed, and no node is kept.

    ``broken`` is the first operation that was given finite gradients and returned others: its line, its name, and
    the parameters behind it.
    """

    def __init__(self, recorder: Recorder, found: Walk, numbers: list[int | None]) -> None:
        self._recorder = recorder
        self.broken: tuple[Site, str, frozenset[int]] | None = None
        self._killed: dict[tuple[int, int], Site] = {}  # (node, input) whose gradient became zero there
        indices = {node: index for index, node in enumerate(found.order)}
        pairs = enumerate(numbers[: len(found.leaves)])
        leaves = {leaf: number for leaf, number in pairs if number is not None}
        # The graph as numbers, so that what is found can be traced after the nodes are gone.
        self._below: list[list[int]] = []
        self._leaf_of: dict[tuple[int, int], int] = {}
        by_user: dict[int, list[int]] = {}
        for leaf, users in found.users.items():
            for user in users:
                by_user.setdefault(indices[user], []).append(leaf)
        self._lines = [line_of(node) for node in found.order]
        for index, node in enumerate(found.order):
            own = iter(by_user.get(index, ()))
            row = []
            for place, (child, _) in enumerate(node.next_functions):
                following = indices.get(child, -1) if child is not None else -1
                row.append(following)
                if child is not None and following < 0:
                    leaf = next(own, -1)
                    if leaf in leaves:
                        self._leaf_of[index, place] = leaves[leaf]
            self._below.append(row)
        self._handles = [
            node.register_hook(self._hook(index, node.name())) for index, node in enumerate(found.order)
        ]

    def remove(self) -> None:
        """Take the hooks away, for a graph that is used again."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, index: int, name: str) -> Any:
        def look(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            with self._recorder.working():
                self._look(index, name, inputs, outputs)

        return look

    def _look(self, index: int, name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        sizes = [_size(gradient) for gradient in outputs]
        given = max((size for size in sizes if size is not None), default=0.0)
        for place, gradient in enumerate(inputs):
            size = _size(gradient)
            if size is None:
                continue
            if size == 0 and given > 0:
                self._killed[index, place] = self._lines[index]
            elif self.broken is None and not size < float("inf") and given < float("inf"):
                self.broken = (self._lines[index], name, frozenset(self._behind(index)))

    def _behind(self, index: int) -> Iterator[int]:
        seen, todo = {index}, [index]
        while todo:
            node = todo.pop()
            for place, child in enumerate(self._below[node]):
                if child < 0:
                    if (node, place) in self._leaf_of:
                        yield self._leaf_of[node, place]
                elif child not in seen:
                    seen.add(child)
                    todo.append(child)

    def zeroed(self) -> Iterator[tuple[int, Site]]:
        """Yield parameters behind an operation that turned a gradient to zero, those nearest the root first."""
        for (index, place), site in self._killed.items():
            child = self._below[index][place] if place < len(self._below[index]) else -1
            if child >= 0:
                for number in self._behind(child):
                    yield number, site
            elif (index, place) in self._leaf_of:
                yield self._leaf_of[index, place], site


@torch.no_grad()
def first_nan(found: Walk) -> tuple[Site, str] | None:
    """Return the first operation of the forward pass that gave NaN, as far as the graph has kept what it was given.

    A number that did not come through the graph has no operation there: then it is the line that used it.
    """
    for node in sorted(found.order, key=node_number.use):
        for place, (child, _) in enumerate(node.next_functions):
            if place < 2 and _is_nan(node, ("_saved_self", "_saved_other")[place]):
                return line_of(child if child is not None and line_of(child) else node), node.name()
        if _is_nan(node, "_saved_result"):
            return line_of(node), node.name()
    return None


def _is_nan(node: Any, name: str) -> bool:
    try:
        saved = getattr(node, name, None)
        return isinstance(saved, Tensor) and saved.is_floating_point() and bool(saved.isnan().any())
    except RuntimeError:  # freed, or changed in place since
        return False


@torch.no_grad()
def _size(gradient: Any) -> float | None:
    """Return the largest absolute value: 0 where all of it is zero, inf or nan where not all is finite."""
    if (
        not isinstance(gradient, Tensor)
        or gradient.is_sparse
        or gradient.is_complex()
        or not gradient.numel()
    ):
        return None
    try:
        return float(torch.linalg.vector_norm(gradient.detach(), float("inf")))
    except (RuntimeError, NotImplementedError):  # a dtype or device without it
        return None
