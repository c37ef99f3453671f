"""Find graphs that stay alive after their step, and the variable that holds them."""

from __future__ import annotations

import itertools
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.autograd_graph import Graph, walk
from gradgate.call_sites import user_frames
from gradgate.checker.recording._names import variables_of
from gradgate.checker.recording._reach import older_than
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._user_objects import (
    children_of,
    fields_of,
    is_a,
    items_of,
    key_text,
    pairs_of,
)
from gradgate.events import Frame, GraphsKept, Site
from gradgate.torch_compat import node_number

SUSPICIOUS = 4  # this many live graphs of earlier steps start a search
_MOST = 256
_MOST_SEARCHED = 2000  # objects searched per variable
_MOST_NODES = 4096
_DEEPEST = 4
_MARK = "gradgate"


class RetainedGraphs:
    """Marks one node of each graph, to learn whether the graph is still alive."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # mark -> line that called backward
        self._marks: weakref.WeakKeyDictionary[_Mark, Site] = weakref.WeakKeyDictionary()
        self._alive: dict[Site, deque[int]] = {}  # line that called backward -> last counts of live graphs
        self._recorded: dict[Site, int] = {}
        self._newest: dict[Site, int] = {}  # line that retains its graphs -> node number of its last root

    def shared(self, graph: Graph, site: Site, *, retain: bool) -> int:
        """Return how many nodes are older than the line's last call, if that call retained its graph."""
        newest = self._newest.pop(site, None)
        if retain:
            self._newest[site] = max(map(node_number.use, graph.roots), default=-1)
        return 0 if newest is None else older_than(graph.nodes, newest)[0]

    def follow(self, nodes: list[Any], site: Site) -> None:
        """Mark the oldest node of a backward call's graph.

        Any reference to the loss, or to an output from which the loss was computed, keeps that node alive.
        """
        if len(self._marks) >= _MOST or not nodes:
            return
        oldest = min(nodes, key=node_number.use)
        if _MARK not in oldest.metadata:
            oldest.metadata[_MARK] = mark = _Mark()
            self._marks[mark] = site

    def look(self) -> None:
        """After a step, count the live graphs. If their number grows, search for the variable that holds them."""
        counts = Counter(self._marks.values())
        for site in {*counts, *self._alive}:
            # Two optimizers may step in turn, and one of them may keep no graph. So equal counts are allowed.
            alive = self._alive.setdefault(site, deque([0], maxlen=2 * SUSPICIOUS))
            alive.append(counts[site])
            growing = sorted(alive) == list(alive)
            # Micro-batches may keep their graphs until the next step. So a single rise does not count as growth.
            rises = sum(before < after for before, after in itertools.pairwise(alive))
            if not growing or rises < SUSPICIOUS - 1 or counts[site] < SUSPICIOUS:
                continue
            if self._recorded.get(site, 0) * 2 > counts[site]:
                continue
            self._recorded[site] = counts[site]
            held = (
                each[:2]
                for each in candidates()
                if len(each[2]) > 1 or _marks_behind(each[2][0]) >= SUSPICIOUS - 1
            )
            holder = next(held, ("", ()))
            self._recorder.add(GraphsKept(self._recorder.site(), counts[site], site, *holder))


def candidates() -> Iterator[tuple[str, Site, list[Tensor]]]:
    """Yield each tensor or collection of tensors that may hold several graphs: its path, scope and tensors.

    An example of a path is "self.history['loss']".
    """
    for frame in user_frames():
        scope = (Frame(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_code.co_name),)
        for path, tensors in _paths_to_graphs(list(variables_of(frame))):
            yield path, scope, tensors


def _paths_to_graphs(variables: list[tuple[str, Any]]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield paths to tensors with graphs. Short paths come first: other objects may lead to a variable's value."""
    todo: deque[tuple[str, Any, int]] = deque((name, value, 0) for name, value in variables)
    seen: set[int] = set()
    while todo and len(seen) < _MOST_SEARCHED * len(variables):
        path, thing, depth = todo.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if is_a(thing, Tensor):
            if thing.grad_fn is not None:
                yield path, [thing]
            continue
        inner = list(_inside(path, thing))
        tensors = [item for _, item in inner if is_a(item, Tensor) and item.grad_fn is not None]
        if len(tensors) >= SUSPICIOUS - 1:
            yield path, tensors
        if is_a(thing, list, tuple, deque) and inner:
            # The items of a list are usually alike, so search only the last one.
            last = inner[-1][1]
            if is_a(last, tuple, dict) and len(inner) >= SUSPICIOUS - 1 and _graphs_in(last):
                yield path, [tensor for _, item in inner for tensor in _graphs_in(item)[:1]]
        if depth < _DEEPEST:
            todo.extend((inner_path, item, depth + 1) for inner_path, item in inner)


def _inside(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the contents of a container or object, each with its path."""
    if is_a(thing, dict, list, tuple, deque):
        yield from ((f"{path}[{key_text(key)}]", item) for key, item in pairs_of(thing, _MOST))
    elif not is_a(thing, type, types.ModuleType, types.FunctionType, torch.optim.Optimizer):
        own = list(fields_of(thing).items())
        if is_a(thing, nn.Module):
            own = [(name, item) for name, item in own if not name.startswith("_")]
            own += children_of(thing)
        yield from ((f"{path}.{name}", item) for name, item in own)


def _graphs_in(thing: Any) -> list[Tensor]:
    items = items_of(thing) if is_a(thing, tuple, dict) else []
    return [item for item in items if is_a(item, Tensor) and item.grad_fn is not None]


def _marks_behind(tensor: Tensor) -> int:
    return sum(_MARK in node.metadata for node, _ in itertools.islice(walk(tensor.grad_fn), _MOST_NODES))


class _Mark:
    """An object stored in a node. A weak reference to it shows whether the node is alive."""

    __slots__ = ("__weakref__",)
