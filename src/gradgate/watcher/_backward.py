"""Every ``backward`` and ``autograd.grad``: what the loss is made of, what it reaches, where its gradient dies."""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.events import Backward, Differentiated, Ids, NonfiniteMade, Opposed, Site, Term, is_on_purpose
from gradgate.watcher._gradients import Gradients
from gradgate.watcher._graph import Walk, roots_of, walk
from gradgate.watcher._kept import Kept
from gradgate.watcher._lines import line_of
from gradgate.watcher._probes import Probe, first_nan
from gradgate.watcher._recorder import Recorder
from gradgate.watcher._terms import Head

_PROBED = 6  # backward calls at one line whose gradients are followed through the graph
_STILL_PROBED = 24  # the same, while some parameter's gradient was zero each time
_MOST_PROBED = 60  # the same, where graphs are small: a gradient may break later
_FEW_NODES = 400
_MOST_NODES = 20_000  # in a graph that is followed
_USES = 48
_TERMS_TOLD = 12
_CLONES = 12  # gradients that are compared with what a backward call adds
_MOST_CLONED = 1 << 16
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
        self._reach: dict[tuple[Site, int], Ids] = {}  # by line and thread
        self._calls: dict[Site, int] = {}
        self._bare: dict[int, weakref.ref[Tensor]] = {}
        self.written: dict[int, tuple[int, Site]] = {}  # parameter: newest node when its values were written
        self._newest: Backward | None = None
        self._failed: Backward | None = None  # the last call, if it raised
        self._nan_told = False
        self._standing: list[tuple[int, Tensor]] = []

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
        if torch.compiler.is_compiling() or not recorder.active:
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
        recorder.lines.off()
        try:
            with recorder.going_back():
                return original(*args, **kwargs)
        except Exception:
            self._failed = event
            raise
        finally:
            with recorder.working():
                if probe is not None:
                    self._after(probe)
                if self._standing and not self.in_backward:
                    self._compare_added()
                self._gradients.note(reached)
                if recorder.looking:
                    recorder.lines.on()

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
        if not recorder.looking and place in self._reach:
            reached = self._reach[place]
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
        roots = roots_of(tensors)
        found = walk(roots, older_than=recorder.last_key)
        self._standing = self._clones(found.leaves)
        wanted = [inputs] if isinstance(inputs, Tensor) else inputs
        chosen = None if wanted is None else {id(tensor) for tensor in wanted}
        reached, others, numbers = self._reached(found, tensors, chosen)
        self._reach[place] = reached
        head = Head(recorder.scaled, self._number_if_known)
        managed = is_on_purpose()
        terms = () if len(roots) != 1 or managed else head.terms(roots[0])
        if len(terms) > 1 and calls <= _USES_TOLD:
            terms = self._reaches(roots[0], terms)
        if roots:
            recorder.newest_key = max(recorder.newest_key, *(node._sequence_nr() for node in roots))
        self._newest = Backward(
            site,
            reached,
            terms=terms,
            others=others,
            nodes=found.nodes,
            old_nodes=found.old_nodes,
            old_site=found.old_site,
            retain=bool(create_graph if retain_graph is None else retain_graph),
            create=create_graph,
            closure=recorder.closures > 0,
            scaler=self._scaler(head, found),
            synced=self.synchronises(reached),
            uses=_uses(found, self._number_if_known) if calls <= _USES_TOLD else (),
            through=self._through(found, numbers),
            beyond=self._beyond(found, numbers) if calls <= _USES_TOLD else frozenset(),
            stale=self._stale(found, numbers),
            value=_value(tensors),
            managed=managed,
        )
        recorder.add(self._newest)
        self._kept.follow(found.order, site)
        value = _value(tensors)
        if value is not None and math.isnan(value) and not self._nan_told:
            self._nan_told = True
            first = first_nan(found)
            if first is not None:
                recorder.add(NonfiniteMade(*first, reached, loss=True))
        probed = _PROBED if not any(self._suspicious(number) for number in reached) else _STILL_PROBED
        if found.nodes <= _FEW_NODES and recorder.seconds < 1.0:
            probed = _MOST_PROBED
        if calls > probed or found.nodes > _MOST_NODES or self.in_backward or chosen is not None:
            return reached, None
        return reached, Probe(found, numbers)

    def _scaler(self, head: Head, found: Walk) -> int | None:
        """Return the gradient scaler whose factor lies in the graph: near its root, or below a reduction."""
        scaled = self._recorder.scaled
        if head.scaler is not None or not scaled:
            return head.scaler
        numbers = (scaled.get(node._sequence_nr()) for node in found.order)
        return next((max(number, ~number) for number in numbers if number is not None), None)

    def _reached(
        self, found: Walk, tensors: Any, chosen: set[int] | None
    ) -> tuple[Ids, int, list[int | None]]:
        """Return the parameters among the leaves, how many leaves are none, and each leaf's number."""
        leaves = list(found.leaves)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        leaves += [root for root in roots if isinstance(root, Tensor) and root.is_leaf]
        numbers: list[int | None] = []
        others = 0
        for leaf in leaves:
            if chosen is not None and id(leaf) not in chosen:
                numbers.append(None)
                continue
            number = self._number_if_known(leaf)
            if number is None and isinstance(leaf, nn.Parameter):
                number = self._recorder.parameters.number(leaf)
            elif number is None:
                seen = self._bare.get(id(leaf))
                if seen is not None and seen() is leaf:
                    number = self._recorder.parameters.number(leaf)
                else:
                    self._bare[id(leaf)] = weakref.ref(leaf)
                    others += 1
            elif not isinstance(leaf, nn.Parameter) and number not in self._recorder.parameters.owned:
                others += 1
            numbers.append(number)
        if len(self._bare) > 4096:
            self._bare.clear()
        reached = self._recorder.parameters.same(number for number in numbers if number is not None)
        for number in reached:
            self._recorder.parameters.sights[number].reached = True
        return reached, others, numbers

    def _number_if_known(self, leaf: Tensor) -> int | None:
        return self._recorder.parameters.numbers.known(leaf)

    def _suspicious(self, number: int) -> bool:
        sight = self._recorder.parameters.sights[number]
        return sight.looks == sight.zeros and not sight.zeroed

    def _through(self, found: Walk, numbers: list[int | None]) -> tuple[tuple[int, Site], ...]:
        """Return where those leaves were used that no optimizer holds."""
        owned = self._recorder.parameters.owned
        uses: list[tuple[int, Site]] = []
        for index, number in enumerate(numbers[: len(found.leaves)]):
            if number is not None and number not in owned and len(uses) < _USES:
                uses.append((number, line_of(found.users[index][0]) if index in found.users else ()))
        return tuple(uses)

    def _beyond(self, found: Walk, numbers: list[int | None]) -> Ids:
        """Return those leaves in no optimizer whose other operand was computed from parameters in one."""
        owned = self._recorder.parameters.owned
        pairs = list(enumerate(numbers[: len(found.leaves)]))
        others = [(index, number) for index, number in pairs if number is not None and number not in owned]
        if not others or found.nodes > _MOST_NODES:
            return frozenset()
        after: set[Any] = {
            node for index, number in pairs if number in owned for node in found.users.get(index, ())
        }
        above: dict[Any, Any] = {}
        for node in sorted(found.order, key=lambda one: one._sequence_nr()):
            for child, _ in node.next_functions:
                above.setdefault(child, node)
                if child in after:
                    after.add(node)
        beyond = set()
        for index, number in others:
            for node in found.users.get(index, ()):
                while len(node.next_functions) == 1 and node in above:  # a transposed weight
                    node = above[node]
                if node in after:
                    beyond.add(number)
        return self._recorder.parameters.same(beyond)

    def _stale(self, found: Walk, numbers: list[int | None]) -> tuple[tuple[int, Site], ...]:
        """Return the parameters whose values were written after this graph had used them."""
        stale = []
        for index, number in enumerate(numbers[: len(found.leaves)]):
            key, site = self.written.get(number if number is not None else -1, (-1, ()))
            users = found.users.get(index, ())
            if number is not None and key >= 0 and any(0 <= node._sequence_nr() < key for node in users):
                stale.append((number, site))
        return tuple(stale)

    def _clones(self, leaves: list[Tensor]) -> list[tuple[int, Tensor]]:
        """Return copies of a few gradients that stand already, to see what is added to them."""
        clones: list[tuple[int, Tensor]] = []
        for leaf in leaves:
            number = self._number_if_known(leaf)
            grad = leaf.grad
            if (
                number is not None
                and grad is not None
                and not grad.is_sparse
                and grad.numel() <= _MOST_CLONED
            ):
                clones.append((number, grad.detach().clone()))
        step = max(1, len(clones) // _CLONES)
        return clones[::step]

    def _compare_added(self) -> None:
        """Record where what was added to a gradient points against what stood there."""
        parameters = self._recorder.parameters
        cosines: list[tuple[int, float]] = []
        for number, old in self._standing:
            tensor = parameters.numbers.get(number)
            grad = tensor.grad if tensor is not None else None
            if grad is None or grad.shape != old.shape:
                continue
            one, added = old.double().reshape(-1), (grad.detach() - old).double().reshape(-1)
            product, first, second = float(one @ added), float(one @ one), float(added @ added)
            if first > 0 and second > 0:
                cosines.append((number, product / (first * second) ** 0.5))
        self._standing = []
        if any(cosine < 0 for _, cosine in cosines):
            self._recorder.add(Opposed(self._recorder.site(), tuple(cosines)))

    def _reaches(self, root: Any, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        """Tell of each of a few terms what it reaches."""
        wanted = {term.key: term for term in terms[:_TERMS_TOLD] if term.key >= 0}
        nodes: dict[int, Any] = {}
        todo, seen = [root], {root}
        while todo and len(nodes) < len(wanted):
            node = todo.pop()
            key = node._sequence_nr()
            if key in wanted:
                nodes[key] = node
                continue
            for child, _ in node.next_functions:
                if child is not None and child not in seen:
                    seen.add(child)
                    todo.append(child)
        told = []
        for term in terms:
            node = nodes.get(term.key)
            if node is not None:
                numbers = [self._number_if_known(leaf) for leaf in walk([node]).leaves]
                reach = self._recorder.parameters.same(one for one in numbers if one is not None)
                term = dataclasses.replace(term, reach=reach)
            told.append(term)
        return tuple(told)

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
        if torch.compiler.is_compiling() or not recorder.active or self.in_backward:
            return original(*args, **kwargs)
        recorder.stop_if_due()
        args, kwargs = _gone_through_twice(args, kwargs)
        with recorder.working():
            self._differentiated(*args, **kwargs)
        return original(*args, **kwargs)

    def _differentiated(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.looking:
            return
        create = bool(kwargs.get("create_graph", args[2] if len(args) > 2 else False))
        found = walk(roots_of(outputs))
        wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        known = [self._number_if_known(leaf) for leaf in found.leaves]
        asked = [self._number_if_known(tensor) for tensor in wanted if isinstance(tensor, Tensor)]
        same = recorder.parameters.same
        recorder.add(
            Differentiated(
                recorder.site(),
                create,
                same(number for number in known if number is not None),
                same(number for number in asked if number is not None),
            )
        )


def _gone_through_twice(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with lists in place of generators, which can be gone through only once."""
    listed = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
    return listed, {name: list(one) if isinstance(one, Iterator) else one for name, one in kwargs.items()}


def _uses(found: Walk, known: Callable[[Tensor], int | None]) -> tuple[tuple[int, Site], ...]:
    """Return parameters in the order in which the forward used them last, and where it used them first."""
    first = []
    for index, leaf in enumerate(found.leaves):
        number = known(leaf)
        if number is not None and index in found.users:
            users = sorted(found.users[index], key=lambda one: one._sequence_nr())
            first.append((users[-1]._sequence_nr(), number, line_of(users[0])))
    return tuple((number, site) for _, number, site in sorted(first, key=lambda entry: entry[:2]))


def _value(tensors: Any) -> float | None:
    """Return the loss where it lies in this machine's own memory."""
    if isinstance(tensors, Tensor) and tensors.numel() == 1 and tensors.device.type == "cpu":
        with torch.no_grad():
            return float(tensors.detach().double())
    return None
