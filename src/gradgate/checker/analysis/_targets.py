"""Values with a gradient that a loss should treat as constants, found in the shadow of values."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._values import SAME, SCALES, SUMS, LossValue, flow
from gradgate.events import Ids, ModeSet, Stepped, Value

_ERRORS = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub"))
_DISTRIBUTIONS = frozenset(
    ("kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy")
)  # their second argument is a target
_COMPARISONS = _ERRORS | _DISTRIBUTIONS | {"cosine_similarity", "cosine_embedding_loss"}
_SQUARES = frozenset(("pow", "square"))


class Target(NamedTuple):
    """A value that a loss trains, although it is the target of a comparison."""

    how: str
    number: int  # the operation that compares
    lost: int  # parameters that its gradient reaches, as bits


class Targets:
    """Asks of one loss which of its values are targets."""

    def __init__(self, run: Run, loss: LossValue) -> None:
        self._run = run
        self._flow = flow(run)
        self._nodes, self._live = self._flow.nodes, self._flow.live
        self._loss = loss
        self._trained = self._with_gradient()

    def find(self) -> Iterator[Target]:
        """Yield the targets of the loss."""
        pairs = list(self._pairs())
        for number, value, target in pairs:
            for how, is_one in (
                ("target", self._is_distribution),
                ("other", self._is_other_network),
                ("next", self._is_next_value),
            ):
                meant = self._live[target] & self._loss.meant and self._is_output(target)
                if meant and is_one(number, value, target, pairs):
                    yield Target(how, self._origin(target) if how == "next" else number, self._live[target])
                    break
        yield from self._advantages()
        yield from self._compared_twice(pairs)
        yield from self._views(pairs)

    def _with_gradient(self, without: tuple[int, int] = (-1, -1)) -> set[int]:
        """Return the values below the loss that get a gradient, by another way than from one value to another."""
        todo, seen = [self._loss.event.root], {self._loss.event.root}
        while todo:
            number = todo.pop()
            for parent in self._nodes[number].parents:
                if parent not in seen and self._live[parent] and (number, parent) != without:
                    seen.add(parent)
                    todo.append(parent)
        return seen

    def _pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the operations that compare two values with a gradient, with each value that may be the target."""
        for number in sorted(self._trained):
            node = self._nodes[number]
            if node.op in _COMPARISONS and node.live and len(node.parents) == 2:
                one, other = node.parents
                if self._live[one] and self._live[other] and one != other:
                    yield number, one, other
                    if node.op == "sub":
                        yield number, other, one

    # What makes a value a target

    def _is_output(self, value: int) -> bool:
        """Return whether a layer computed a value, which is no function of parameters alone."""
        return any(
            any(self._nodes[each].leaf >= 0 for each in node.parents)
            and (node.data or any(self._nodes[each].leaf < 0 for each in node.parents))
            for node in (self._nodes[number] for number in self._flow.below(value))
        )

    def _is_distribution(
        self, number: int, value: int, target: int, pairs: list[tuple[int, int, int]]
    ) -> bool:
        """Return whether a target comes from other parameters, and isn't compared the other way round as well."""
        if self._nodes[number].op not in _DISTRIBUTIONS:
            return False
        mine, theirs = self._live[value], self._live[target]
        mutual = any(
            self._nodes[other].op == self._nodes[number].op and self._live[one] & theirs & ~mine
            for other, one, _ in pairs
            if other != number
        )
        new = theirs & ~mine or self._nodes[self._origin(target)].op == "setitem"
        return bool(new) and not mutual and self._origin(value) not in self._flow.below(target)

    def _is_other_network(self, number: int, value: int, target: int, _: object) -> bool:
        """Return whether a target is the output of a network that is finished, or that other code moves."""
        theirs = self._live[target]
        if self._nodes[number].op not in _ERRORS or theirs & self._live[value]:
            return False
        ids = self._flow.ids(theirs)
        alone = not any(
            self._nodes[each].leaf >= 0 and theirs >> self._nodes[each].leaf & 1
            for each in self._with_gradient(without=(number, target))
        )
        return alone and (
            (ids <= self._written and not self._flow.ids(self._live[value]) & self._written)
            or self._is_finished(ids, self._flow.ids(self._live[value]))
        )

    @functools.cached_property
    def _written(self) -> Ids:
        """The parameters that other code changes between steps."""
        return union(event.changed for event in self._run.of(Stepped))

    def _is_finished(self, ids: Ids, others: Ids) -> bool:
        """Return whether a network is in evaluation mode, or an earlier optimizer has finished training it."""
        run = self._run
        modes = [event for event in run.of(ModeSet) if event.parameters & ids]
        if modes and not modes[-1].training and not modes[-1].parameters & others:
            return True
        before = run.optimizers_of(ids) - run.optimizers_of(others)
        steps = [step for each in before for step in run.steps(each)]
        return bool(steps) and max(steps) < self._loss.number

    def _is_next_value(self, number: int, value: int, target: int, _: object) -> bool:
        """Return whether a target is data plus a multiple of a value of the same network: reward + 0.9 * q(s)."""
        if self._nodes[number].op not in _ERRORS or self._live[value] != self._live[target]:
            return False
        return self._adds_data(target) and not self._adds_data(value)

    def _adds_data(self, value: int) -> bool:
        """Return whether data is added to a multiple of a layer's output."""
        node = self._nodes[self._origin(value)]
        live = [each for each in node.parents if self._live[each]]
        product = self._origin(live[0]) if len(live) == 1 else -1
        return node.op in ("add", "sub") and node.data and self._nodes[product].op in SCALES

    def _has_constant(self, node: Value) -> bool:
        """Return whether a tensor without a gradient is among an operation's operands."""
        return node.data or any(not self._live[each] for each in node.parents)

    # Values in products, in several terms, and of one encoder

    def _advantages(self) -> Iterator[Target]:
        """Yield factors of log-probabilities that another term of the loss compares with data."""
        compared = {layer for number in self._trained for layer in self._regressed(number)}
        for number in sorted(self._trained):
            node = self._nodes[number]
            factors = [each for each in node.parents if self._live[each]] if node.op == "mul" else []
            for factor, other in (factors, factors[::-1]) if len(factors) == 2 else ():
                layers = self._layers(factor, differences=True)
                logs = any("log" in self._nodes[each].op for each in self._flow.below(other))
                if layers and layers <= compared and logs and self._live[factor] & self._loss.meant:
                    yield Target("advantage", number, self._live[factor])

    def _regressed(self, number: int) -> set[int]:
        """Return the last layers, as bits, of a value that an error or a square compares with data."""
        node = self._nodes[number]
        values = [each for each in node.parents if self._live[each]]
        square = node.op in _SQUARES and values and self._nodes[self._origin(values[0])].op == "sub"
        if len(values) != 1 or not (square or (node.op in _ERRORS and node.op != "sub")):
            return set()
        return self._layers(values[0])

    def _layers(self, value: int, *, differences: bool = False) -> set[int]:
        """Return the last layers behind a value, as bits of their parameters, through sums, products and copies."""
        found, todo, seen, met = set[int](), [value], set[int](), False
        while todo:
            number = todo.pop()
            node = self._nodes[number]
            met |= node.op == "sub" and self._has_constant(node)
            layer = sum(
                1 << self._nodes[each].leaf for each in set(node.parents) if self._nodes[each].leaf >= 0
            )
            if layer:
                found.add(layer)
            elif number not in seen and (node.op in SUMS | SAME | SCALES or node.op == "getitem"):
                seen.add(number)
                todo += [each for each in node.parents if self._live[each]]
            else:
                found.add(-1)
        return found - {-1} if met or not differences else set()

    def _compared_twice(self, pairs: list[tuple[int, int, int]]) -> Iterator[Target]:
        """Yield errors whose two values a second error compares as well, with one of them detached."""
        errors: dict[frozenset[int], set[int]] = defaultdict(set)
        for number in self._trained:
            node = self._nodes[number]
            if node.op in _ERRORS and len(node.parents) == 2:
                errors[frozenset(map(self._origin, node.parents))].add(number)
        whole = {number for number, one, other in pairs if not self._live[one] & self._live[other]}
        for several in errors.values():
            if several & whole and several - {number for number, _, _ in pairs}:
                yield Target("twice", last := max(several & whole), self._live[last])

    def _views(self, pairs: list[tuple[int, int, int]]) -> Iterator[Target]:
        """Yield the comparisons of a loss that only compares a predictor's outputs with outputs of its encoder."""
        known = {number: (value, target) for number, value, target in pairs}
        terms = self._flow.terms(self._loss.event.root)[0]
        for number in terms:
            value, target = known.get(number, (number, number))
            theirs = self._live[target]
            if theirs == self._live[value] or theirs & ~self._live[value] or not theirs & self._loss.meant:
                return
        yield from (Target("views", number, self._live[known[number][1]]) for number in terms)

    def _origin(self, number: int) -> int:
        """Return the value of which a value is a copy, a detached one included."""
        while self._nodes[number].op in SAME and len(self._nodes[number].parents) == 1:
            (number,) = self._nodes[number].parents
        return number
