"""Graphs that are still alive when they should be gone, and what holds them."""

from __future__ import annotations

import itertools
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradgate.events import Frame, GraphsKept, Site
from gradgate.watcher._recorder import Recorder, Weak, still_alive
from gradgate.watcher._sites import user_frames

_SUSPICIOUS = 5  # graphs of earlier steps
_MOST = 256
_MARK = "gradgate"


class Kept:
    """Puts a mark into the root of each graph, which lives exactly as long as the graph's root node does."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._marks: list[weakref.ref[Weak]] = []
        self._sites: dict[weakref.ref[Weak], Site] = {}
        self._alive: list[int] = []
        self._said: dict[Site, int] = {}

    def follow(self, roots: list[Any], site: Site) -> None:
        """Mark the graphs that are about to be back-propagated."""
        if len(self._marks) >= _MOST:
            return
        for root in roots:
            if _MARK not in root.metadata:
                mark = Weak()
                root.metadata[_MARK] = mark
                ref = weakref.ref(mark)
                self._marks.append(ref)
                self._sites[ref] = site

    def look(self) -> None:
        """After a step: count the marked graphs that live, and look for their holder where they grow in number."""
        self._marks = still_alive(self._marks)
        self._sites = {ref: self._sites[ref] for ref in self._marks}
        self._alive.append(len(self._marks))
        last = self._alive[-_SUSPICIOUS:]
        growing = all(before < after for before, after in itertools.pairwise(last))
        if len(self._marks) < _SUSPICIOUS or not growing:
            return
        site = self._sites[self._marks[0]]
        if self._said.get(site, 0) * 2 > len(self._marks):
            return
        self._said[site] = len(self._marks)
        holder, added = self._holder()
        self._recorder.add(GraphsKept(self._recorder.site(), len(self._marks), site, holder, added))

    def _holder(self) -> tuple[str, Site]:
        """Return the name of what holds them, and a line of its scope, where one of the running frames shows it."""
        for frame in user_frames():
            for name, value in held_by(frame):
                if _holds_graphs(value):
                    line = frame.f_code.co_firstlineno
                    return name, (Frame(frame.f_code.co_filename, line, frame.f_code.co_name),)
        return "", ()


def held_by(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a frame, and of the objects of the user's own classes in it: "self.total".

    Reading a function's locals makes a dict of them that would live as long as its frame, and keep what the user
    thinks is gone: it is emptied again, unless somebody else holds it too.
    """
    names = frame.f_locals
    pairs = list(names.items())
    if frame.f_code.co_flags & 1 and sys.version_info < (3, 13) and sys.getrefcount(names) <= 3:
        names.clear()
    del names
    for name, value in pairs:
        yield name, value
    for name, value in pairs:
        fields = getattr(value, "__dict__", None)
        if isinstance(fields, dict) and not isinstance(value, (type, types.ModuleType, types.FunctionType)):
            for inner, held in list(fields.items()):
                yield f"{name}.{inner}", held


def _holds_graphs(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        kept = [item for item in value if isinstance(item, Tensor) and item.grad_fn is not None]
        return len(kept) >= _SUSPICIOUS
    if not isinstance(value, Tensor) or value.grad_fn is None:
        return False
    marks, depth = 0, 0
    todo: list[Any] = [value.grad_fn]
    seen: set[Any] = set()
    while todo and depth < 4096:
        node = todo.pop()
        depth += 1
        marks += _MARK in node.metadata
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                todo.append(child)
    return marks >= _SUSPICIOUS - 1
