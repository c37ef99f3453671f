"""Every ``backward`` and ``autograd.grad``: what the loss is made of, what it reaches, where its gradient dies."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._opposing_gradients import GradientCopies
from gradgate.checker.recording._probes import Probe, first_nan
from gradgate.checker.recording._reach import KnownLeaves
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._retained_graphs import Kept
from gradgate.checker.recording._terms import Terms
from gradgate.checker.recording._tracing import tracing
from gradgate.events import Backward, Differentiated, Ids, NonfiniteMade, Site, is_on_purpose
from gradgate.torch_compat import node_number, reads_losses

_PROBED = 6  # backward calls at one line whose gradients are followed through the graph
_STILL_PROBED = 24  # the same, while some parameter's gradient was zero each time
_MOST_PROBED = 60  # the same, where graphs are small: a gradient may break later
_FEW_NODES = 400
_MOST_NODES = 20_000  # in a graph that is followed
_LOOKS_WITHOUT_STEPS = 60
_USES_TOLD = 3  # backward calls at one line that say in which order they used their parameters


class Backwards:
    """Watches torch.autograd."""

    def __init__(self, recorder: Recorder, gradients: Gradients, kept: Kept) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._kept = kept
        self.give_up: Callable[[], None] = lambda: None
        self.synchronises: Callable[[Ids], bool | None] = lambda _: (
            None
        )  # is what is reached averaged over ranks?
        self.without_steps: Callable[[], None] = lambda: None  # looks, where no optimizer has stepped
        self._last: dict[tuple[Site, int], Ids] = {}  # by line and thread
        self._calls: dict[Site, int] = {}
        self.reach = KnownLeaves(recorder)
        self._newest: Backward | None = None
        self._failed: Backward | None = None  # the last call, if it raised
        self._nan_told = False
        self._standing = GradientCopies(recorder)

    @property
    def in_backward(self) -> bool:
        """Say whether a backward call is running, in any thread: on another device it runs in one of its own."""
        return self._recorder.goes_back

    def install(self) -> None:
        """Stand around the two functions that every backward pass goes through."""
        patches = self._recorder.patches
        patches.wrap(torch.autograd, "backward", self._around_backward)
        patches.wrap(torch.autograd, "grad", self._around_grad)

    def _around_backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if tracing() or not recorder.active:
            return original(*args, **kwargs)
        recorder.stop_if_due()
        args, kwargs = _gone_through_twice(args, kwargs)
        reached: Ids = frozenset()
        probe: Probe | None = None
        event: Backward | None = None
        with recorder.working():
            reached, probe = self._before(*args, **kwargs)
            event = self._newest
            self._gradients.take(reached)
        try:
            with recorder.lines.paused(), recorder.timed("backward"), recorder.going_back():
                return original(*args, **kwargs)
        except Exception:
            self._failed = event
            raise
        finally:
            with recorder.working():
                if probe is not None:
                    self._after(probe)
                if self._standing and not self.in_backward:
                    self._standing.compare()
                if event is not None and not event.seen:
                    reached = self._really_reached(event)
                self._gradients.note(reached)

    def _before(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> tuple[Ids, Probe | None]:
        recorder = self._recorder
        site = recorder.site()
        recorder.backwards += 1
        failed, self._failed = self._failed, None
        if failed is not None and failed.reached:  # the script went on all the same
            recorder.journal.take_back(failed)
        if not self.in_backward:
            self.give_up()
        if not self.in_backward:
            self._gradients.compare()
        calls = self._calls[site] = self._calls.get(site, 0) + 1
        if recorder.looking and not recorder.steps and calls < _LOOKS_WITHOUT_STEPS:
            self.without_steps()
        place = site, threading.get_ident()
        if not recorder.looking and place in self._last:
            reached = self._last[place]
            synced = self.synchronises(reached)
            retain, create = bool(retain_graph), create_graph
            self._newest = Backward(
                site,
                reached,
                seen=False,
                retain=retain,
                create=create,
                synced=synced,
                managed=is_on_purpose(),
            )
            recorder.add(self._newest)
            return reached, None
        graph = Graph(tensors)
        self._standing.copy(graph.leaves.values())
        wanted = [inputs] if isinstance(inputs, Tensor) else inputs
        chosen = None if wanted is None else {id(tensor) for tensor in wanted}
        found = self.reach.of(graph, chosen)
        reached = self._last[place] = found.ids
        first = calls <= _USES_TOLD
        managed = is_on_purpose()
        head = Terms(recorder.scaled, self.reach.number_if_known)
        readable = len(graph.roots) == 1 and not managed and reads_losses()
        terms = head.read(graph.roots[0], reach=first) if readable else ()
        old_nodes, old_site = found.older_than(recorder.last_key)
        recorder.newest_key = max([recorder.newest_key, *map(node_number.use, graph.roots)])
        self._newest = Backward(
            site,
            reached,
            terms=terms,
            others=found.others,
            nodes=len(graph.nodes),
            old_nodes=old_nodes,
            old_site=old_site,
            retain=bool(create_graph if retain_graph is None else retain_graph),
            create=create_graph,
            closure=recorder.closures > 0,
            scaler=self._scaler(head, graph),
            synced=self.synchronises(reached),
            uses=found.first_uses() if first else (),
            through=found.unowned_uses(),
            beyond=found.unowned_after_owned() if first else frozenset(),
            stale=found.stale(self.reach.written),
            value=_value(tensors),
            managed=managed,
        )
        recorder.add(self._newest)
        self._kept.follow(graph.nodes, site)
        value = _value(tensors)
        if value is not None and math.isnan(value) and not self._nan_told:
            self._nan_told = True
            origin = first_nan(graph)
            if origin is not None:
                recorder.add(NonfiniteMade(*origin, reached, loss=True))
        probed = _PROBED if not any(self._suspicious(number) for number in reached) else _STILL_PROBED
        if len(graph.nodes) <= _FEW_NODES and recorder.seconds < 1.0:
            probed = _MOST_PROBED
        if calls > probed or len(graph.nodes) > _MOST_NODES or self.in_backward or chosen is not None:
            return reached, None
        return reached, Probe(recorder, graph, found.numbers)

    def _really_reached(self, event: Backward) -> Ids:
        """Return what a call reached whose graph was not looked at.

        One line may train several models in turn. If the gradient of one of the parameters that it reached last
        is as it was, all are compared.
        """
        if not event.reached or self._gradients.changed((min(event.reached),)):
            return event.reached
        reached = self._gradients.changed()
        if not reached:  # cleared again already, by hooks that step within the backward pass
            return event.reached
        self._recorder.journal.replace(event, dataclasses.replace(event, reached=reached))
        return reached

    def _scaler(self, head: Terms, graph: Graph) -> int | None:
        """Return the gradient scaler whose factor lies in the graph: near its root, or below a reduction."""
        scaled = self._recorder.scaled
        if head.scaler is not None or not scaled:
            return head.scaler
        numbers = (scaled.get(node_number.use(node)) for node in graph.nodes)
        return next((max(number, ~number) for number in numbers if number is not None), None)

    def _suspicious(self, number: int) -> bool:
        sight = self._recorder.parameters.sights[number]
        return sight.looks == sight.zeros and not sight.zeroed

    def _after(self, probe: Probe) -> None:
        sights = self._recorder.parameters.sights
        for number, site in probe.zeroed():
            if not sights[number].zeroed:
                sights[number].zeroed = site
        if probe.broken is not None:
            site, node, numbers = probe.broken
            self._recorder.add(NonfiniteMade(site, node, self._recorder.parameters.same(numbers)))
        probe.remove()

    def _around_grad(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if tracing() or not recorder.active or self.in_backward:
            return original(*args, **kwargs)
        recorder.stop_if_due()
        recorder.derivatives += 1
        args, kwargs = _gone_through_twice(args, kwargs)
        with recorder.working():
            self._differentiated(*args, **kwargs)
        # What a gradient with a graph of its own is made of gets the line of this call.
        with contextlib.nullcontext() if _creates(args, kwargs) else recorder.lines.paused():
            return original(*args, **kwargs)

    def _differentiated(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.looking:
            return
        leaves = Graph(outputs).leaves.values()
        wanted = [inputs] if isinstance(inputs, Tensor) else list(getattr(inputs, "values", lambda: inputs)())
        known = [self.reach.number_if_known(leaf) for leaf in leaves]
        asked = [self.reach.number_if_known(tensor) for tensor in wanted if isinstance(tensor, Tensor)]
        same = recorder.parameters.same
        recorder.add(
            Differentiated(
                recorder.site(),
                _creates((outputs, inputs, *args), kwargs),
                same(number for number in known if number is not None),
                same(number for number in asked if number is not None),
            )
        )


def _creates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether a call of ``autograd.grad`` asks for a graph of the gradients."""
    return bool(kwargs.get("create_graph", args[4] if len(args) > 4 else False))


def _gone_through_twice(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with lists in place of generators, which can be gone through only once."""
    listed = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
    return listed, {name: list(one) if isinstance(one, Iterator) else one for name, one in kwargs.items()}


def _value(tensors: Any) -> float | None:
    """Return the loss where it lies in this machine's own memory."""
    if isinstance(tensors, Tensor) and tensors.numel() == 1 and tensors.device.type == "cpu":
        with torch.no_grad():
            return float(tensors.detach().double())
    return None
