"""Find graphs that an evaluation keeps alive but no backward pass uses."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from gradgate.checker.recording._node_lines import Stack
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._retained_graphs import SUSPICIOUS, candidates, separate_graphs
from gradgate.events import GraphsKept, Site
from gradgate.torch_compat import stored_stack

_PHASES = 4  # evaluations examined per run
_MOST_NODES = 20_000  # nodes tracked per evaluation
_GROWTH = 1.25  # the number of live nodes must grow by this factor before the next search
_FALLS = 3  # once most nodes were freed this many times, the script is assumed to keep graphs only briefly


@dataclass(eq=False)
class _Collection:
    """Graphs that one variable keeps alive. The stacks in their nodes show whether a backward pass used them."""

    event: GraphsKept
    phase: int
    stacks: list[weakref.ref[Stack]]

    @property
    def is_used(self) -> bool:
        return any(stack is not None and stack.used for stack in (ref() for ref in self.stacks))


class EvaluationGraphs:
    """Tracks the graphs created in an evaluation phase, from ``eval()`` to the next backward call or ``train()``.

    Each node created by the first line of a phase stores its own stack, which is freed with the node. If the
    number of live stacks keeps growing, this class searches for a variable that holds several separate graphs.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._phase = 0
        self._open = False
        self._first: Site = ()
        self._most = self._nodes = self._falls = 0
        self._alive: dict[int, weakref.ref[Stack]] = {}
        self._collections: dict[tuple[str, Site], _Collection] = {}
        self._brief: set[tuple[str, Site]] = set()

    def evaluate(self, evaluating: bool) -> None:
        """Begin a phase after ``eval()``, or end the phase after ``train()``."""
        if not evaluating:
            self._look()
            self.end()
        elif not self._open and self._phase < _PHASES:
            self._open = True
            self._phase += 1
            self._first, self._alive = (), {}
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

    def used(self, nodes: list[Any]) -> None:
        """Mark nodes as used by a backward pass or ``autograd.grad``."""
        if self._collections or self._open:
            for node in nodes:
                stack = stored_stack(node)
                if isinstance(stack, Stack) and stack.own:
                    stack.used = True
            self._collections = {key: each for key, each in self._collections.items() if not each.is_used}

    def finish(self, *, ended: bool) -> None:
        """Record the graphs that nothing used. If the run was interrupted, leave out the current phase."""
        for each in self._collections.values():
            if ended or not self._open or each.phase < self._phase:
                self._recorder.add(each.event)
        self._collections.clear()

    def _node_made(self, stack: Stack) -> Stack:
        """Return the stack to store in a new node. This runs within the user's forward pass."""
        own: Stack | None = None
        with self._recorder.working():
            own = self._own_stack(stack)
        return stack if own is None else own

    def _own_stack(self, stack: Stack) -> Stack | None:
        """Return a stack of its own for a new node, if the phase's first line created the node."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            self.end()
            return None
        self._first = self._first or stack.site
        if stack.site != self._first:
            return None
        if self._most and len(self._alive) < self._most / 2:
            self._falls, self._most = self._falls + 1, len(self._alive)
            if self._falls >= _FALLS:
                self._brief |= {key for key, each in self._collections.items() if each.phase == self._phase}
                self._collections = {
                    key: each for key, each in self._collections.items() if key not in self._brief
                }
                self.end()
                return None
        if len(self._alive) >= max(SUSPICIOUS, _GROWTH * self._most):
            self._look()
        own = Stack(stack)
        own.site, own.own = stack.site, True
        key = id(own)
        self._alive[key] = weakref.ref(own, lambda _, alive=self._alive: alive.pop(key, None))  # type: ignore[misc]
        return own

    def _look(self) -> None:
        """Search for the variable that holds the graphs."""
        if not self._open or len(self._alive) < SUSPICIOUS:
            return
        self._most = len(self._alive)
        for path, scope, tensors in candidates():
            graphs = [own for nodes in separate_graphs(tensors) if (own := _own_stacks(nodes))]
            stacks, key = [stack for own in graphs for stack in own], (path, scope)
            if len(graphs) < SUSPICIOUS or key in self._brief or any(stack.used for stack in stacks):
                continue
            known = self._collections.get(key)
            if known is None or known.event.count < len(graphs):
                event = GraphsKept(self._first, len(graphs), (), path, scope)
                self._collections[key] = _Collection(
                    event, self._phase, [weakref.ref(each) for each in stacks]
                )
            return


def _own_stacks(nodes: list[Any]) -> list[Stack]:
    stacks = (stored_stack(node) for node in nodes)
    return [each for each in stacks if isinstance(each, Stack) and each.own]
