"""Find the values that were taken out of the very graph that a loss is computed by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import LEAF, Graph
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._user_objects import is_a
from gradgate.events import Combined, Ids, Site
from gradgate.torch_compat import node_number

_MOST = 512  # values that wait for a backward call
_PER_LINE = 64
_NEAREST = 12  # nodes behind a value


class LiveCuts:
    """Remembers the nodes of values that lines detach, or take into a ``no_grad`` block, until a backward call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lines: dict[int, Site] = {}  # node number -> where its value was cut
        self._counts: Counter[Site] = Counter()

    def note(self, value: Any, site: Site, *, behind: bool = False) -> None:
        """Remember a value that leaves its graph, or may do so in the block that begins here.

        With ``behind``, what the value was computed from counts, too: a loss may use a part of it.
        """
        if (
            len(self._lines) >= _MOST
            or not site
            or self._counts[site] >= _PER_LINE
            or not is_a(value, Tensor)
        ):
            return
        if value.grad_fn is not None:
            self._counts[site] += 1
            for node in _nearest(value.grad_fn) if behind else [value.grad_fn]:
                self._lines.setdefault(node_number.use(node), site)

    def within(self, graph: Graph, backward: Site) -> Iterator[Combined]:
        """Yield the lines that cut a value out of a loss's graph. Forget all values."""
        lines, self._lines = self._lines, {}
        inner = (node for node in graph.nodes if node.name() != LEAF) if lines else ()
        sites = {lines[number] for node in inner if (number := node_number.use(node)) in lines}
        for site in sites:
            yield Combined(site, "cut", Ids(), backward)


def _nearest(node: Any) -> list[Any]:
    """Return a node and the first ones behind it, without leaves."""
    found = [node]
    for each in found:
        inputs = [child for child, _ in each.next_functions if child is not None and child.name() != LEAF]
        found += [child for child in inputs if child not in found][: max(0, _NEAREST - len(found))]
    return found
