"""Record ``backward`` and ``autograd.grad``: loss terms, reached parameters, vanishing gradients."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import Graph, ops
from gradgate.call_sites import trainer_at_work
from gradgate.checker.recording._combined import combined
from gradgate.checker.recording._drift import Drift
from gradgate.checker.recording._gradients import GradientCopies, Gradients
from gradgate.checker.recording._measures import Probe, first_nan, nan_parameters, value_of
from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._ranks import RankRecorder
from gradgate.checker.recording._reach import Reached, older_than
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._retained_graphs import RetainedGraphs
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._terms import Terms
from gradgate.checker.recording._user_objects import listed, tensors_in
from gradgate.checker.recording.graph import driven
from gradgate.events import Backward, Differentiated, Ids, NonfiniteMade, Site, is_on_purpose
from gradgate.torch_compat import node_number, reads_losses

# Backward calls per line that get a probe, which follows the gradients through the graph.
_PROBED = 6
_STILL_PROBED = 24  # while any parameter's gradient has always been zero
_MOST_PROBED = 60  # in small graphs, where a probe is cheap
_FEW_NODES = 400
_MOST_NODES = 20_000  # larger graphs get no probe
_LOOKS_WITHOUT_STEPS = 60
_FIRST_CALLS = 3  # backward calls per line that record the order in which the forward pass uses parameters


class Backwards:
    """Watches ``backward`` and ``grad`` of ``torch.autograd``."""

    def __init__(
        self,
        recorder: Recorder,
        gradients: Gradients,
        steps: Steps,
        ranks: RankRecorder,
        drift: Drift,
    ) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._steps = steps
        self._ranks = ranks
        self._drift = drift
        self.kept = RetainedGraphs(recorder)
        # (line, thread) -> parameters that the last call reached
        self._last: dict[tuple[Site, int], Ids] = {}
        self._calls: dict[Site, int] = {}
        self._newest: dict[Site, int] = {}  # line that calls autograd.grad -> node number of its last root
        self._failed: Backward | None = None  # the last call, if it raised
        self._nan_recorded = self._nan_parameters = False
        self._repeated: tuple[Any, Backward] | None = None  # the last call recorded without reading its graph
        self._copies = GradientCopies(recorder)
        self._hooked: set[int] = set()  # numbers of the nodes whose gradients the user's hooks get

    def hook(self, tensor: Tensor, *_: Any, **__: Any) -> None:
        """Record a user's hook on a computed value."""
        if self._recorder.looking and tensor.grad_fn is not None:
            self._hooked.add(node_number.use(tensor.grad_fn))

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
        recorder = self._recorder
        rests = recorder.rests()
        recorder.backwards += 1
        if rests:
            return
        event, probe = self._before(tensors, retain_graph, create_graph, inputs)
        self._gradients.take(event.reached)
        completed = False
        recorder.in_backward += 1
        recorder.lines.pause(1)
        try:
            yield
            completed = True
        finally:
            recorder.in_backward -= 1
            recorder.lines.pause(-1)
            if not completed:
                self._failed = event
            if probe is not None:
                self._after(probe)
            if event.seen and not recorder.in_backward:
                self._copies.compare()
            changed = self._gradients.note(event.reached)
            if not event.seen and event.reached and next(iter(event.reached)) not in changed:
                self._look_for_reached(event, changed)

    def _before(
        self, tensors: Any, retain_graph: bool | None, create_graph: bool, inputs: Any
    ) -> tuple[Backward, Probe | None]:
        """Record a call before it runs. Outside of a close look, don't read the graph of a known line."""
        recorder = self._recorder
        site = recorder.site()
        self._settle()
        calls = self._calls[site] = self._calls.get(site, 0) + 1
        if recorder.looking and not recorder.steps and calls < _LOOKS_WITHOUT_STEPS:
            self._drift.who_moves()
        facts: dict[str, Any] = {
            "retain": bool(create_graph if retain_graph is None else retain_graph),
            "create": bool(create_graph),
            "managed": is_on_purpose(),
            "closure": recorder.thread.closures > 0,
        }
        known = self._last.get((site, threading.get_ident()))
        if not recorder.looking and known is not None:
            return self._repeat(site, known, facts), None
        facts["root"] = recorder.values.back_propagated(listed(tensors), site)
        graph = Graph(listed(tensors))
        self._copies.copy(graph.leaves.values())
        chosen = None if inputs is None else {id(tensor) for tensor in tensors_in(inputs)}
        found = Reached(graph, recorder.parameters, chosen)
        self._last[site, threading.get_ident()] = found.ids
        event = self._examine(site, graph, found, value_of(tensors), facts)
        if chosen is not None or not self._is_probed(len(graph.nodes), calls, found.ids):
            return event, None
        return event, Probe(recorder, graph, found.numbers)

    def _settle(self) -> None:
        """Clean up after the previous call, and record the gradients that changed since then."""
        recorder = self._recorder
        failed, self._failed = self._failed, None
        if failed is not None and failed.reached:  # the script continued despite the error
            recorder.events.replace(failed, None)
        if not recorder.in_backward:
            self._steps.give_up()
            self._gradients.compare()

    def _repeat(self, site: Site, known: Ids, facts: dict[str, Any]) -> Backward:
        """Record a call, assuming that it reaches the same parameters as its line's last call."""
        facts["synced"], facts["around"] = self._ranks.synchronizes(known)
        if self._repeated is None or self._repeated[0] != (site, known, facts):
            self._repeated = (site, known, facts), Backward(site, known, seen=False, **facts)
        event = self._repeated[1]
        self._recorder.add(event)
        return event

    def _examine(
        self, site: Site, graph: Graph, found: Reached, value: float | None, facts: dict[str, Any]
    ) -> Backward:
        """Record a call with facts from its graph. Some facts are read only in a line's first calls."""
        recorder = self._recorder
        first = self._calls[site] <= _FIRST_CALLS
        head = Terms(recorder.scaled, recorder.parameters)
        readable = len(graph.roots) == 1 and not facts["managed"] and reads_losses()
        old_nodes, old_site = older_than(graph.nodes, recorder.thread.last_key)
        recorder.thread.newest_key = max([recorder.thread.newest_key, *map(node_number.use, graph.roots)])
        facts["synced"], facts["around"] = self._ranks.synchronizes(found.ids)
        event = Backward(
            site,
            found.ids,
            **facts,
            terms=head.read(graph.roots[0], reach=first) if readable else (),
            others=found.others,
            nodes=len(graph.nodes),
            trainer=trainer_at_work(),
            old_nodes=old_nodes,
            old_site=old_site,
            shared=self.kept.shared(graph, site, retain=facts["retain"]),
            scaler=self._scaler(head, graph),
            hooked=graph.has(ops.MODULE_HOOK)
            or (bool(self._hooked) and not self._hooked.isdisjoint(map(node_number.use, graph.nodes))),
            uses=found.first_uses() if first or facts["around"] else (),
            through=found.unowned_uses(),
            beyond=found.after_others() if first else frozenset(),
            driven=recorder.parameters.known(driven(graph)) if first else frozenset(),
            value=value,
        )
        recorder.add(event)
        if first and readable:
            for each in combined(graph, site, recorder.parameters):
                recorder.add(each)
        self.kept.follow(graph.nodes, site)
        if value is not None and math.isnan(value) and not self._nan_recorded:
            self._nan_recorded = True
            origin, self._nan_parameters = first_nan(graph), nan_parameters(graph)
            if origin is not None and not self._nan_parameters:
                recorder.add(NonfiniteMade(*origin, found.ids, loss=True))
        return event

    def _is_probed(self, nodes: int, calls: int, reached: Ids) -> bool:
        """Return whether this call gets a probe."""
        records = self._recorder.parameters.records
        zero_so_far = any(
            records[each].looks == records[each].zeros and not records[each].zeroed for each in reached
        )
        most = _STILL_PROBED if zero_so_far else _PROBED
        if nodes <= _FEW_NODES and (self._recorder.strict or self._recorder.seconds < 1.0):
            most = _MOST_PROBED
        return calls <= most and nodes <= _MOST_NODES and not self._recorder.in_backward

    def _look_for_reached(self, event: Backward, changed: Iterable[int]) -> None:
        """Correct an event that was recorded without reading the graph, if the call reached different parameters.

        One line may train several models in turn. If hooks step and clear during the backward pass, no gradient
        seems to have changed.
        """
        reached = self._recorder.parameters.same([*changed, *self._gradients.note()])
        if reached:
            self._recorder.events.replace(event, dataclasses.replace(event, reached=reached))

    def _scaler(self, head: Terms, graph: Graph) -> int | None:
        """Return the gradient scaler that scaled the loss, near the root or below a reduction."""
        scaled = self._recorder.scaled
        if head.scaler is not None or not scaled:
            return head.scaler
        numbers = (scaled.get(node_number.use(node)) for node in graph.nodes)
        return next((max(number, ~number) for number in numbers if number is not None), None)

    def _after(self, probe: Probe) -> None:
        parameters = self._recorder.parameters
        for number, site, name in probe.zeroed():
            if not parameters.records[number].zeroed:
                parameters.records[number].zeroed, parameters.records[number].zeroed_by = site, name
        if probe.broken is not None and not self._nan_parameters:
            site, node, numbers = probe.broken
            self._recorder.add(NonfiniteMade(site, node, parameters.same(numbers)))
        probe.remove()

    def is_outermost(self, *_: Any, **__: Any) -> bool:
        """Return whether no backward pass is running."""
        return not self._recorder.in_backward

    def grad(
        self,
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        *_: Any,
        **__: Any,
    ) -> Around:
        """Record a call of ``torch.autograd.grad``. The arguments are those of torch's function."""
        recorder = self._recorder
        recorder.derivatives += 1
        if recorder.looking:
            known = recorder.parameters.known
            graph = Graph(listed(outputs))
            site = recorder.site()
            old_nodes, old_site = older_than(graph.nodes, self._newest.get(site, -1))
            self._newest[site] = max(map(node_number.use, graph.roots), default=-1)
            recorder.add(
                Differentiated(
                    site,
                    bool(create_graph),
                    known(graph.leaves.values()),
                    known(tensors_in(inputs)),
                    len(graph.nodes),
                    old_nodes,
                    old_site,
                )
            )
        recorder.lines.pause(not create_graph)  # with create_graph, the new nodes must store their lines
        try:
            derivatives = yield
            recorder.values.differentiated([*listed(outputs), *listed(inputs)], derivatives)
        finally:
            recorder.lines.pause(-(not create_graph))
