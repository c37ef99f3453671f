"""Graphs that are still alive when they should be gone, and what holds them."""

from __future__ import annotations

import itertools
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.call_sites import user_frames
from gradgate.checker.recording._modules import children_of
from gradgate.checker.recording._names import variables_of
from gradgate.checker.recording._recorder import Recorder
from gradgate.events import Frame, GraphsKept, Site
from gradgate.torch_compat import node_number

_SUSPICIOUS = 4  # graphs of earlier steps
_MOST = 256
_MOST_SEARCHED = 2000  # objects that are looked into, for what holds them
_MOST_NODES = 4096
_DEEPEST = 4
_MARK = "gradgate"


class Kept:
    """Puts a mark into a node of each graph, which lives exactly as long as that node does."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._marks: list[weakref.ref[_Mark]] = []
        self._sites: dict[weakref.ref[_Mark], Site] = {}
        self._alive: dict[Site, deque[int]] = {}  # how many lived at the last looks
        self._said: dict[Site, int] = {}

    def follow(self, nodes: list[Any], site: Site) -> None:
        """Mark the graph that is about to be back-propagated, by its oldest node.

        Whatever holds a loss holds that, and so does what holds an output that the loss was made of.
        """
        if len(self._marks) >= _MOST or not nodes:
            return
        oldest = min(nodes, key=node_number.use)
        if _MARK not in oldest.metadata:
            mark = _Mark()
            oldest.metadata[_MARK] = mark
            ref = weakref.ref(mark)
            self._marks.append(ref)
            self._sites[ref] = site

    def look(self) -> None:
        """After a step: count the marked graphs that live, and look for their holder where they grow in number."""
        self._marks = [ref for ref in self._marks if ref() is not None]
        self._sites = {ref: self._sites[ref] for ref in self._marks}
        counts = Counter(self._sites.values())
        for site in {*counts, *self._alive}:
            # Two optimizers step in turn, and one of them may keep nothing: not each look has to find one more.
            alive = self._alive.setdefault(site, deque([0], maxlen=2 * _SUSPICIOUS))
            alive.append(counts[site])
            growing = all(before <= after for before, after in itertools.pairwise(alive))
            # What one step's own micro-batches keep until the next is no growth: it has to rise several times.
            rises = sum(before < after for before, after in itertools.pairwise(alive))
            if not growing or rises < _SUSPICIOUS - 1 or counts[site] < _SUSPICIOUS:
                continue
            if self._said.get(site, 0) * 2 > counts[site]:
                continue
            self._said[site] = counts[site]
            holder, added = self._holder()
            self._recorder.add(GraphsKept(self._recorder.site(), counts[site], site, holder, added))

    def _holder(self) -> tuple[str, Site]:
        """Return the name of what holds them, and its scope, where one of the running frames shows it."""
        for frame in user_frames():
            for name, value in variables_of(frame):
                found = _path_to_graphs(name, value)
                if found:
                    code = frame.f_code
                    return found, (Frame(code.co_filename, code.co_firstlineno, code.co_name),)
        return "", ()


def _path_to_graphs(name: str, value: Any) -> str:
    """Return by which path a variable leads to tensors that hold several graphs: "self.history['loss']"."""
    todo: deque[tuple[str, Any, int]] = deque([(name, value, 0)])
    seen: set[int] = set()
    while todo and len(seen) < _MOST_SEARCHED:
        path, thing, depth = todo.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            if _reaches_many(thing):
                return path
            continue
        inner = list(_inside(path, thing))
        if sum(isinstance(item, Tensor) and item.grad_fn is not None for _, item in inner) >= _SUSPICIOUS - 1:
            return path
        if isinstance(thing, (list, tuple, deque)) and inner:
            # What a list holds is alike: its last item stands for all.
            last = inner[-1][1]
            if isinstance(last, (tuple, dict)) and len(inner) >= _SUSPICIOUS - 1 and _has_graph(last):
                return path
        if depth < _DEEPEST:
            todo.extend((inner_path, item, depth + 1) for inner_path, item in inner)
    return ""


def _inside(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container or an object of a class that is no module holds, under its name."""
    if isinstance(thing, dict):
        yield from ((f"{path}[{key!r}]", item) for key, item in list(thing.items())[:_MOST])
    elif isinstance(thing, (list, tuple, deque)):
        yield from ((f"{path}[{place}]", item) for place, item in enumerate(list(thing)[-_MOST:]))
    elif not isinstance(thing, (type, types.ModuleType, types.FunctionType, torch.optim.Optimizer)):
        fields = getattr(thing, "__dict__", None)
        own = list(fields.items()) if isinstance(fields, dict) else []
        if isinstance(thing, nn.Module):
            own = [(name, item) for name, item in own if not name.startswith("_")]
            own += children_of(thing)
        yield from ((f"{path}.{name}", item) for name, item in own)


def _has_graph(thing: Any) -> bool:
    items = thing.values() if isinstance(thing, dict) else thing
    return any(isinstance(item, Tensor) and item.grad_fn is not None for item in items)


def _reaches_many(tensor: Tensor) -> bool:
    """Say whether one tensor's graph leads to several of the marked ones."""
    if tensor.grad_fn is None:
        return False
    marks = 0
    todo: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set(todo)
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        marks += _MARK in node.metadata
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                todo.append(child)
    return marks >= _SUSPICIOUS - 1


class _Mark:
    """Lives as long as the node that holds it, and can be held weakly to see that."""

    __slots__ = ("__weakref__",)
