"""Record ``backward`` and ``autograd.grad``: the terms of a loss, what it reaches, where its gradient vanishes."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.call_sites import trainer_at_work
from gradgate.checker.recording._combined import combined
from gradgate.checker.recording._evaluation_graphs import EvaluationGraphs
from gradgate.checker.recording._forward import Cuts
from gradgate.checker.recording._gradients import GradientCopies, Gradients
from gradgate.checker.recording._measures import Probe, first_nan
from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._reach import KnownLeaves, older_than
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._retained_graphs import RetainedGraphs
from gradgate.checker.recording._terms import Terms
from gradgate.checker.recording._user_objects import is_a, items_of
from gradgate.events import Backward, Differentiated, Ids, NonfiniteMade, Site, is_on_purpose
from gradgate.torch_compat import node_number, reads_losses

_PROBED = 6  # backward calls at one line whose gradients are followed through the graph
_STILL_PROBED = 24  # the same, while some parameter's gradient was zero each time
_MOST_PROBED = 60  # the same in small graphs, where it is cheap: a gradient may break later
_FEW_NODES = 400
_MOST_NODES = 20_000  # the largest graph that is followed
_LOOKS_WITHOUT_STEPS = 60
_FIRST_CALLS = 3  # backward calls at one line that record the order in which parameters are used


class Backwards:
    """Watches ``torch.autograd``."""

    def __init__(self, recorder: Recorder, gradients: Gradients, kept: RetainedGraphs, cuts: Cuts) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._kept = kept
        self._cuts = cuts
        self.give_up: Callable[[], None] = lambda: None
        self.synchronizes: Callable[[Ids], tuple[bool | None, bool]] = lambda _: (None, False)
        self.evaluations = EvaluationGraphs(recorder)
        self.without_steps: Callable[[], None] = lambda: None  # called as long as no optimizer has stepped
        self.reach = KnownLeaves(recorder)
        self._counted: set[int] = set()  # nodes whose forward pass is in the FLOPs of some call
        self._last: dict[tuple[Site, int], Ids] = {}  # by line and thread
        self._calls: dict[Site, int] = {}
        self._newest: dict[Site, int] = {}  # by line that calls autograd.grad, the number of its last root
        self._failed: Backward | None = None  # the last call, if it raised
        self._nan_recorded = False
        self._repeated: tuple[Any, Backward] | None = None  # the last call whose graph was not read
        self._copies = GradientCopies(recorder)

    def is_recorded(self, *_: Any, **__: Any) -> bool:
        """Return whether to record a backward call. Once a loop was watched long enough, calls are only counted."""
        if self._recorder.rests():
            self._recorder.backwards += 1
            self._recorder.stop_if_due()
            return False
        return True

    def backward(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Around:
        """Record a backward call. The arguments are those of ``torch.autograd.backward``."""
        event, probe = self._before(tensors, retain_graph, create_graph, inputs)
        self._gradients.take(event.reached)
        completed = False
        try:
            yield
            completed = True
        finally:
            if not completed:
                self._failed = event
            if probe is not None:
                self._after(probe)
            if self._copies and not self._recorder.in_backward:
                self._copies.compare()
            changed = self._gradients.note(event.reached)
            if not event.seen and event.reached and next(iter(event.reached)) not in changed:
                self._look_for_reached(event, changed)

    def _before(
        self, tensors: Any, retain_graph: bool | None, create_graph: bool, inputs: Any
    ) -> tuple[Backward, Probe | None]:
        recorder = self._recorder
        site = recorder.site()
        recorder.backwards += 1
        failed, self._failed = self._failed, None
        if failed is not None and failed.reached:  # the script continued despite the error
            recorder.events.replace(failed, None)
        if not recorder.in_backward:
            self.evaluations.end()
            self.give_up()
            self._gradients.compare()
        calls = self._calls[site] = self._calls.get(site, 0) + 1
        if recorder.looking and not recorder.steps and calls < _LOOKS_WITHOUT_STEPS:
            self.without_steps()
        place = site, threading.get_ident()
        known = self._last.get(place)
        retain = bool(create_graph if retain_graph is None else retain_graph)
        facts = retain, bool(create_graph), recorder.thread.closures > 0, is_on_purpose()
        if not recorder.looking and known is not None:
            event = self._unseen(site, known, facts)
            recorder.add(event)
            return event, None
        event = _unseen(site, known or frozenset(), *facts)
        graph = Graph(_listed(tensors))
        self._copies.copy(graph.leaves.values())
        chosen = None if inputs is None else {id(tensor) for tensor in _tensors(inputs)}
        found = self.reach.of(graph, chosen)
        reached = self._last[place] = found.ids
        first = calls <= _FIRST_CALLS
        head = Terms(recorder.scaled, self.reach.number_if_known)
        readable = len(graph.roots) == 1 and not event.managed and reads_losses()
        old_nodes, old_site = older_than(graph.nodes, recorder.thread.last_key)
        flops, serving = found.flops(self._counted) if first else (0.0, ())
        recorder.thread.newest_key = max([recorder.thread.newest_key, *map(node_number.use, graph.roots)])
        value = _value(tensors)
        synced, around = self.synchronizes(reached)
        event = dataclasses.replace(
            event,
            reached=reached,
            seen=True,
            terms=head.read(graph.roots[0], reach=first) if readable else (),
            others=found.others,
            nodes=len(graph.nodes),
            trainer=trainer_at_work(),
            old_nodes=old_nodes,
            old_site=old_site,
            scaler=self._scaler(head, graph),
            synced=synced,
            around=around,
            uses=found.first_uses() if first or around else (),
            through=found.unowned_uses(),
            beyond=found.after_others() if first else frozenset(),
            stale=found.stale(self.reach.written),
            value=value,
            flops=flops,
            serving=serving,
        )
        recorder.add(event)
        if first:
            self._cuts.find_samples(graph)
        if first and readable:
            for each in combined(graph, site, self.reach.number_if_known):
                recorder.add(each)
        self._kept.follow(graph.nodes, site)
        self.evaluations.used(graph.nodes)
        if value is not None and math.isnan(value) and not self._nan_recorded:
            self._nan_recorded = True
            origin = first_nan(graph)
            if origin is not None:
                recorder.add(NonfiniteMade(*origin, reached, loss=True))
        if chosen is not None or not self._is_probed(len(graph.nodes), calls, reached):
            return event, None
        return event, Probe(recorder, graph, found.numbers)

    def _unseen(self, site: Site, reached: Ids, facts: tuple[bool, bool, bool, bool]) -> Backward:
        """Return the event of a call whose graph is not read: the previous event, if nothing differs."""
        key = site, reached, facts, self.synchronizes(reached)
        if self._repeated is None or self._repeated[0] != key:
            self._repeated = key, _unseen(site, reached, *facts, key[3])
        return self._repeated[1]

    def _is_probed(self, nodes: int, calls: int, reached: Ids) -> bool:
        """Return whether the gradients of this call are followed through the graph."""
        records = self._recorder.parameters.records
        zero_so_far = any(
            records[each].looks == records[each].zeros and not records[each].zeroed for each in reached
        )
        most = _STILL_PROBED if zero_so_far else _PROBED
        if nodes <= _FEW_NODES and self._recorder.seconds < 1.0:
            most = _MOST_PROBED
        return calls <= most and nodes <= _MOST_NODES and not self._recorder.in_backward

    def _look_for_reached(self, event: Backward, changed: list[int]) -> None:
        """Correct the event of a call whose graph was not read, if it reached other parameters than last time.

        One line may train several models in turn. If hooks step and clear within the backward pass, no gradient
        seems to have changed.
        """
        reached = self._recorder.parameters.same([*changed, *self._gradients.note()])
        if reached:
            self._recorder.events.replace(event, dataclasses.replace(event, reached=reached))

    def _scaler(self, head: Terms, graph: Graph) -> int | None:
        """Return the gradient scaler whose factor is in the graph, near the root or below a reduction."""
        scaled = self._recorder.scaled
        if head.scaler is not None or not scaled:
            return head.scaler
        numbers = (scaled.get(node_number.use(node)) for node in graph.nodes)
        return next((max(number, ~number) for number in numbers if number is not None), None)

    def _after(self, probe: Probe) -> None:
        parameters = self._recorder.parameters
        for number, site in probe.zeroed():
            if not parameters.records[number].zeroed:
                parameters.records[number].zeroed = site
        if probe.broken is not None:
            site, node, numbers = probe.broken
            self._recorder.add(NonfiniteMade(site, node, parameters.same(numbers)))
        probe.remove()

    def is_outermost(self, *_: Any, **__: Any) -> bool:
        """Return whether no backward pass is running."""
        return not self._recorder.in_backward

    def paused(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        """Store no lines during ``autograd.grad``, unless it makes a graph, whose nodes need this line."""
        return nullcontext() if _creates(args, kwargs) else self._recorder.lines.paused()

    def grad(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        """Record a call of ``autograd.grad``."""
        recorder = self._recorder
        recorder.derivatives += 1
        if not recorder.looking:
            return
        known, same = self.reach.number_if_known, recorder.parameters.same
        graph = Graph(_listed(outputs))
        self.evaluations.used(graph.nodes)
        site = recorder.site()
        old_nodes, old_site = older_than(graph.nodes, self._newest.get(site, -1))
        self._newest[site] = max(map(node_number.use, graph.roots), default=-1)
        recorder.add(
            Differentiated(
                site,
                _creates((outputs, inputs, *args), kwargs),
                same(map(known, graph.leaves.values())),
                same(map(known, _tensors(inputs))),
                len(graph.nodes),
                old_nodes,
                old_site,
            )
        )


def _unseen(
    site: Site,
    reached: Ids,
    retain: bool,
    create: bool,
    closure: bool,
    managed: bool,
    synchronized: tuple[bool | None, bool] = (None, False),
) -> Backward:
    synced, around = synchronized
    return Backward(
        site,
        reached,
        seen=False,
        retain=retain,
        create=create,
        closure=closure,
        managed=managed,
        synced=synced,
        around=around,
    )


def _listed(given: Any) -> list[Any]:
    """Return the tensors in an argument of torch.autograd: one tensor, or a list, tuple or dict of several."""
    return [given] if is_a(given, Tensor) else items_of(given)


def _tensors(given: Any) -> list[Tensor]:
    return [each for each in _listed(given) if is_a(each, Tensor)]


def _creates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of ``autograd.grad`` asks for a graph of the gradients."""
    return bool(kwargs.get("create_graph", args[4] if len(args) > 4 else False))


def _value(tensors: Any) -> float | None:
    """Return the loss, if reading it does not synchronize with a device."""
    if is_a(tensors, Tensor) and tensors.numel() == 1 and tensors.device.type == "cpu":
        with torch.no_grad():
            return float(tensors.detach().double())
    return None
