"""What a backward call reaches: which parameters, where the forward used them, through which terms."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from gradgate.checker.recording._graph import Walk, walk
from gradgate.checker.recording._node_lines import line_of
from gradgate.checker.recording._recorder import Recorder
from gradgate.events import Ids, Site, Term
from gradgate.torch_compat import node_number

_USES = 48
_TERMS_TOLD = 12
_MOST_NODES = 20_000  # in a graph that is followed


class Reach:
    """Tells leaves of a graph from one another."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._bare: dict[int, weakref.ref[Tensor]] = {}
        self.written: dict[int, tuple[int, Site]] = {}  # parameter: newest node when its values were written

    def reached(
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
            number = self.number_if_known(leaf)
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
            self._recorder.parameters.records[number].reached = True
        return reached, others, numbers

    def number_if_known(self, leaf: Tensor) -> int | None:
        """Return a leaf's number, if it is a parameter that was met before."""
        return self._recorder.parameters.numbers.known(leaf)

    def through(self, found: Walk, numbers: list[int | None]) -> tuple[tuple[int, Site], ...]:
        """Return where those leaves were used that no optimizer holds."""
        owned = self._recorder.parameters.owned
        uses: list[tuple[int, Site]] = []
        for index, number in enumerate(numbers[: len(found.leaves)]):
            if number is not None and number not in owned and len(uses) < _USES:
                uses.append((number, line_of(found.users[index][0]) if index in found.users else ()))
        return tuple(uses)

    def beyond(self, found: Walk, numbers: list[int | None]) -> Ids:
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
        for node in sorted(found.order, key=node_number.use):
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

    def stale(self, found: Walk, numbers: list[int | None]) -> tuple[tuple[int, Site], ...]:
        """Return the parameters whose values were written after this graph had used them."""
        stale = []
        for index, number in enumerate(numbers[: len(found.leaves)]):
            key, site = self.written.get(number if number is not None else -1, (-1, ()))
            users = found.users.get(index, ())
            if number is not None and key >= 0 and any(0 <= node_number.use(node) < key for node in users):
                stale.append((number, site))
        return tuple(stale)

    def reaches(self, root: Any, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        """Tell of each of a few terms what it reaches."""
        wanted = {term.key: term for term in terms[:_TERMS_TOLD] if term.key >= 0}
        nodes: dict[int, Any] = {}
        todo, seen = [root], {root}
        while todo and len(nodes) < len(wanted):
            node = todo.pop()
            key = node_number.use(node)
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
                numbers = [self.number_if_known(leaf) for leaf in walk([node]).leaves]
                reach = self._recorder.parameters.same(one for one in numbers if one is not None)
                term = dataclasses.replace(term, reach=reach)
            told.append(term)
        return tuple(told)


def uses_of(found: Walk, known: Callable[[Tensor], int | None]) -> tuple[tuple[int, Site], ...]:
    """Return parameters in the order in which the forward used them last, and where it used them first."""
    first = []
    for index, leaf in enumerate(found.leaves):
        number = known(leaf)
        if number is not None and index in found.users:
            users = sorted(found.users[index], key=node_number.use)
            first.append((node_number.use(users[-1]), number, line_of(users[0])))
    return tuple((number, site) for _, number, site in sorted(first, key=lambda entry: entry[:2]))
