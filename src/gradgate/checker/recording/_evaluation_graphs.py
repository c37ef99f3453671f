"""Find graphs that an evaluation keeps alive but no backward pass uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from gradgate.checker.recording._node_lines import Stack
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._retained_graphs import SUSPICIOUS, candidates, separate_graphs
from gradgate.events import GraphsKept, Site
from gradgate.torch_compat import stored_stack

_PHASES = 4  # evaluations examined per run
_MOST_NODES = 20_000  # nodes tracked per evaluation
_GROWTH = 1.25  # the number of live nodes must grow by this factor before the next search
_FALLS = 3  # once most nodes were freed this many times, the script is assumed to keep graphs only briefly


class EvaluationGraphs:
    """Tracks the graphs created in an evaluation phase, from ``eval()`` to the next backward call or ``train()``.

    Each node created by the first line of a phase stores its own stack, which is freed with the node. If the
    number of live stacks keeps growing, this class searches for a variable that holds several separate graphs.
    The stacks in the nodes show whether a backward pass uses these graphs later.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._phase = 0
        self._open = False
        self._first: Site = ()
        self._most = self._nodes = self._falls = 0
        self._alive: WeakSet[Stack] = WeakSet()
        # (variable, scope) -> the phase, the event, and the stacks of the graphs that the variable keeps alive
        self._collections: dict[tuple[str, Site], tuple[int, GraphsKept, WeakSet[Stack]]] = {}
        self._brief: set[tuple[str, Site]] = set()

    def evaluate(self, evaluating: bool) -> None:
        """Begin a phase after ``eval()``, or end the phase after ``train()``."""
        if not evaluating:
            self._look()
            self.end()
        elif not self._open and self._phase < _PHASES:
            self._open = True
            self._phase += 1
            self._first, self._alive = (), WeakSet()
            self._most = self._nodes = self._falls = 0
            self._recorder.lines.report_to(self._node_made)
            self._recorder.lines.on()

    def end(self) -> None:
        """End a phase."""
        if self._open:
            self._open = False
            self._recorder.lines.report_to(None)
            if not self._recorder.looking:
                self._recorder.lines.off()

    def used(self, nodes: Iterable[Any]) -> None:
        """Mark nodes as used by a backward pass or ``autograd.grad``."""
        if self._collections or self._open:
            for stack in _own_stacks(nodes):
                stack.used = True
            unused = {key: each for key, each in self._collections.items() if not _is_used(each[2])}
            self._collections = unused

    def finish(self, *, ended: bool) -> None:
        """Record the graphs that nothing used. If the run was interrupted, leave out the current phase."""
        for phase, event, _ in self._collections.values():
            if ended or not self._open or phase < self._phase:
                self._recorder.add(event)
        self._collections.clear()

    def _node_made(self, stack: Stack) -> Stack:
        """Return the stack to store in a new node. This runs within the user's forward pass."""
        with self._recorder.working():
            return self._own_stack(stack)
        return stack

    def _own_stack(self, stack: Stack) -> Stack:
        """Return a separate stack for a new node if the phase's first line created the node."""
        self._nodes += 1
        self._first = self._first or stack.site
        if self._nodes <= _MOST_NODES and stack.site != self._first:
            return stack
        if self._most and len(self._alive) < self._most / 2:
            self._falls, self._most = self._falls + 1, len(self._alive)
        if self._falls >= _FALLS:
            self._brief |= {key for key, each in self._collections.items() if each[0] == self._phase}
            self._collections = {
                key: self._collections[key] for key in self._collections.keys() - self._brief
            }
        if self._falls >= _FALLS or self._nodes > _MOST_NODES:
            self.end()
            return stack
        if len(self._alive) >= max(SUSPICIOUS, _GROWTH * self._most):
            self._look()
        own = Stack(stack)
        own.site, own.used = stack.site, False
        self._alive.add(own)
        return own

    def _look(self) -> None:
        """Search for the variable that holds the graphs."""
        if not self._open or len(self._alive) < SUSPICIOUS:
            return
        self._most = len(self._alive)
        for path, scope, tensors in candidates():
            graphs = list(filter(None, map(_own_stacks, separate_graphs(tensors))))
            stacks, key = WeakSet(stack for own in graphs for stack in own), (path, scope)
            if len(graphs) < SUSPICIOUS or key in self._brief or _is_used(stacks):
                continue
            known = self._collections.get(key)
            if known is None or known[1].count < len(graphs):
                event = GraphsKept(self._first, len(graphs), (), path, scope)
                self._collections[key] = self._phase, event, stacks
            return


def _is_used(stacks: Iterable[Stack]) -> bool:
    return any(stack.used for stack in stacks)


def _own_stacks(nodes: Iterable[Any]) -> list[Stack]:
    stacks = map(stored_stack, nodes)
    return [each for each in stacks if isinstance(each, Stack) and each.used is not None]
