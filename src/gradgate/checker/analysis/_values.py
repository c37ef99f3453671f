"""The shadow of values: from which parameters each value of the first steps came, and where it left the graph.

Parameters are bits of a number, because most questions are unions and intersections of sets. A value is *live* in
the parameters to which autograd passes its gradient, and *cut* off from the others that it was computed from.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gradgate.checker.analysis._run import Run, once
from gradgate.events import Backward, Ids, Site, Stepped, Value

SUMS = frozenset(
    ("add", "sub", "neg", "sum", "mean", "stack", "cat", "hstack", "concat", "nansum", "nanmean")
)
SCALES = frozenset(("mul", "div"))
PARTS = frozenset(("detach", "data"))
# Operations that change neither the numbers nor their derivatives.
SAME = PARTS | {
    *(
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "clone",
        "contiguous",
        "to",
        "float",
        "double",
        "half",
    ),
    *(
        "T",
        "t",
        "expand",
        "apply",
        "item",
        "__float__",
        "tolist",
        "numpy",
        "__array__",
        "tensor",
        "as_tensor",
    ),
    *("type", "cpu", "cuda", "view_as", "permute", "transpose", "requires_grad"),
}
CHOICES = frozenset(
    ("normal", "argmax", "argmin", "max", "min", "expand", "round")
)  # `sample` expands, then draws
DISTANCES = frozenset(
    (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "cross_entropy", "nll_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
        *("cosine_embedding_loss", "cosine_similarity"),
    )
)
_MOST_TERMS = 4096
_TIMES = 2  # once may be a warm-up


class LossValue(NamedTuple):
    """A backward call, and the parameters of the optimizers whose steps used its gradients, as bits."""

    number: int  # of the event
    event: Backward
    meant: int


@dataclass(frozen=True)
class Constant:
    """A term of losses that trains none of the parameters from which it was computed."""

    cut: int  # the value whose graph was cut
    site: Site  # the line that cut it
    losses: tuple[LossValue, ...]
    lost: int  # these parameters


class LeftOut(NamedTuple):
    """A value that could be back-propagated, and is not."""

    # "sum": of a term of the loss and another; "last": the same line later made the loss; "shown"
    how: str
    site: Site
    loss: LossValue
    value: int
    times: int


@once
def flow(run: Run) -> ValueFlow:
    """Return the shadow of values of a run."""
    return ValueFlow(run)


class ValueFlow:
    """What each value depends on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        values = run.log.values
        self.nodes = values.nodes
        self.live: list[int] = []
        self.cut: list[int] = []
        self.copied: list[int] = []  # parameters whose values went into a new leaf
        self.frozen: list[int] = []  # parameters that were not to be trained at that time
        self._bit_of = {number: leaf for leaf, number in enumerate(values.leaves) if number >= 0}
        for node in self.nodes:
            self._follow(node)
        self.stepped = self.bits(number for number in run.owned if run.owners[number] & run.stepping.keys())
        self.unheld = self.bits(run.reached - run.owned)  # a term that trains them is no constant
        self.losses = list(self._losses())

    def _follow(self, node: Value) -> None:
        live = cut = copied = frozen = 0
        for parent in node.parents:
            live |= self.live[parent]
            cut |= self.cut[parent]
            copied |= self.copied[parent]
            frozen |= self.frozen[parent]
        if node.leaf >= 0:
            bit = 1 << node.leaf
            live, cut, copied, frozen = bit * node.live, 0, copied | cut | live, bit * (not node.live)
        elif node.op == "apply":  # an autograd.Function may pass on what went in
            live, cut = live | cut, 0
        elif not node.live:
            live, cut = 0, cut | live
        self.live.append(live)
        self.cut.append(cut)
        self.copied.append(copied)
        self.frozen.append(frozen)

    def bits(self, numbers: Iterable[int]) -> int:
        """Return parameters as bits."""
        return sum({1 << self._bit_of[number] for number in numbers if number in self._bit_of})

    def ids(self, bits: int) -> Ids:
        """Return bits as parameters."""
        return frozenset(number for number, leaf in self._bit_of.items() if bits >> leaf & 1)

    def _losses(self) -> Iterator[LossValue]:
        run = self.run
        idle = {window.step for window in run.windows if not window.micro}
        waiting: list[tuple[int, Backward]] = []
        for number, event in run.numbered(Backward, Stepped):
            if isinstance(event, Backward):
                if event.root < 0 or event.managed:
                    continue
                steps = {step for each in run.by_backward.get(number, ()) for step in each.consumed}
                if steps:
                    owners = {run.stepped(step).optimizer for step in steps}
                    yield LossValue(
                        number, event, self.bits(ids for owner in owners for ids in run.held(owner))
                    )
                else:
                    waiting.append((number, event))
            elif (
                isinstance(event, Stepped) and number in idle and waiting
            ):  # a step without gradients: the last loss was meant for it
                yield LossValue(*waiting[-1], self.bits(run.held(event.optimizer)))
                waiting.clear()

    def missing(self) -> int:
        """Return the parameters of optimizers that never got a gradient, and that nothing else changed."""
        run = self.run
        changed: set[int] = set().union(*(event.changed for event in run.of(Stepped)))
        return self.bits(run.owned - run.reached - changed) & self.stepped

    @functools.cached_property
    def left_out_terms(self) -> Ids:
        """The parameters behind terms and losses that are not back-propagated."""
        bits = 0
        for each in self.left_out():
            bits |= self.live[each.value] if each.how != "shown" else 0
        return self.ids(bits)

    def behind_losses(self) -> Ids:
        """Return the parameters on which the value of a loss depends, with a gradient or without one."""
        bits = 0
        for loss in self.losses:
            bits |= self.live[loss.event.root] | self.cut[loss.event.root] | self.copied[loss.event.root]
        return self.ids(bits)

    def end_of(self, ids: Ids) -> tuple[int | None, bool]:
        """Return the last value with a graph that is computed from parameters without a gradient; None if none is.

        Also returns whether no loss uses another value of its line.
        """
        bits = self.bits(ids)
        found = {n for n, live in enumerate(self.live) if live & bits and self.nodes[n].leaf < 0}
        last = found - {parent for number in found for parent in self.nodes[number].parents}
        lines = Counter(self.nodes[number].site for number in sorted(last))
        for site, times in lines.most_common(1):
            used = self.below(*(loss.event.root for loss in self.losses))
            if times >= _TIMES and site:
                alone = all(self.nodes[number].site != site for number in used)
                return min(number for number in last if self.nodes[number].site == site), alone
        return None, False

    def dropped(self) -> Iterator[tuple[int, int]]:
        """Yield detached values that nothing uses, and parameters that a loss reaches through what was detached."""
        for loss in self.losses:
            used = self.below(loss.event.root)
            for cut in self.run.log.values.dropped:
                (parent,) = self.nodes[cut].parents
                later = any(parent in self.nodes[number].parents for number in used if number > cut)
                if later and self.live[parent]:
                    yield cut, self.live[parent]

    def uses_of(self, numbers: Iterable[int]) -> list[Site]:
        """Return the lines of one function that compute values from parameters."""
        bits = self.bits(numbers)
        own = {number for number, node in enumerate(self.nodes) if node.leaf >= 0 and bits >> node.leaf & 1}
        used = (node for node in self.nodes if node.live and node.site and not own.isdisjoint(node.parents))
        sites = dict.fromkeys(node.site for node in used)
        first = next(iter(sites), ())
        return [site for site in sites if site[0][::2] == first[0][::2] and site[1:] == first[1:]]

    # Parts of a loss

    def terms(self, root: int) -> tuple[list[int], set[int]]:
        """Return the summands of a loss, through sums, means and products with constants, and the values above."""
        terms, todo, seen = [], [root], set[int]()
        while todo and len(seen) < _MOST_TERMS:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self.nodes[number]
            made = [each for each in node.parents if self.live[each] or self.cut[each] or self.frozen[each]]
            ends = bool(made) and not self.live[number] and any(self.live[each] for each in made)
            new = node.leaf >= 0 and bool(node.parents) and not self.stepped >> node.leaf & 1
            if (
                made
                and not ends
                and (
                    new
                    or (
                        node.leaf < 0
                        and (node.op in SUMS or node.op in SAME or (node.op in SCALES and len(made) == 1))
                    )
                )
            ):
                todo += made
            else:
                terms.append(number)
        return terms, seen - set(terms)

    def below(self, *roots: int) -> set[int]:
        """Return all values that values were computed from, with these."""
        todo, seen = list(roots), set(roots)
        while todo:
            for parent in self.nodes[todo.pop()].parents:
                if parent not in seen:
                    seen.add(parent)
                    todo.append(parent)
        return seen

    def cuts(self, start: int, lost: int) -> list[int]:
        """Return the values below ``start`` at which these parameters leave the graph, the nearest first."""
        found, todo, seen = [], [start], {start}
        while todo:
            later = []
            for number in todo:
                node, before = self.nodes[number], 0
                for parent in node.parents:
                    before |= self.live[parent]
                left = before & ~self.live[number] if node.op != "apply" else 0
                if left & lost & (self.copied[number] if node.leaf >= 0 else -1):
                    found.append(number)
                for parent in node.parents:
                    if parent not in seen and (self.cut[parent] | self.copied[parent]) & lost:
                        seen.add(parent)
                        later.append(parent)
            todo = later
        return found

    def has_one_use(self, number: int) -> bool:
        """Return whether a value goes one way only. With several, one of them may need it without a graph."""
        children: dict[int, list[int]] = defaultdict(list)
        for child, node in enumerate(self.nodes):
            for parent in node.parents if node.op not in ("item", "__float__") else ():
                children[parent].append(child)
        while len(children[number]) == 1:
            (number,) = children[number]
        return not children[number]

    def line(self, number: int) -> Site:
        """Return the line that cut the graph: a ``no_grad`` block, or the operation."""
        node = self.nodes[number]
        return node.off if node.off and node.op not in PARTS else node.site

    def place(self, loss: LossValue, number: int) -> tuple[Site, str, Site]:
        """Return what tells the same term in another step."""
        while self.nodes[number].op in PARTS and self.nodes[number].parents:
            number = self.nodes[number].parents[0]
        return loss.event.site, self.nodes[number].op, self.nodes[number].site

    # Questions

    def constants(self) -> Iterator[Constant]:
        """Yield the terms that never train the parameters that they were computed from."""
        hits: dict[object, list[tuple[int, LossValue, int]]] = defaultdict(list)
        trains: dict[object, set[int]] = defaultdict(set)
        for loss in self.losses:
            terms, above = self.terms(loss.event.root)
            for number in (*terms, *above):
                if self.live[number] & loss.meant:
                    trains[self.place(loss, number)].add(loss.number)
            for number in terms:
                lost = self.cut[number] & loss.meant
                if (
                    not lost
                    or self.live[number] & (loss.meant | self.unheld)
                    or self._is_surrogate(terms, above)
                ):
                    continue
                cuts = self.cuts(number, lost)
                if (
                    cuts
                    and not self._is_shift(number, cuts, terms, loss.meant)
                    and not self._is_redrawn(number, cuts[0])
                ):
                    hits[self.place(loss, number)].append((cuts[0], loss, lost))
        for place, several in hits.items():
            calls = {loss.number: loss for _, loss, _ in several}
            if len(calls) >= _TIMES and not trains[place] - calls.keys():
                lost = 0
                for _, _, each in several:
                    lost |= each
                yield Constant(several[0][0], self.line(several[0][0]), tuple(calls.values()), lost)

    def behind_cuts(self, missing: int) -> Iterator[Constant]:
        """Yield where parameters without a gradient leave the graph of a loss whose value depends on them."""
        for loss in self.losses:
            root = loss.event.root
            lost = (self.cut[root] | self.copied[root]) & missing
            if lost and (cuts := self.cuts(root, lost)):
                yield Constant(cuts[0], self.line(cuts[0]), (loss,), lost)
                return
        for read in self.run.log.values.reads:  # it left for numpy, and was not seen to come back
            direct = self.live[read.value] or self.nodes[read.value].op in PARTS
            if (
                direct
                and self.nodes[read.value].size > 1
                and (self.live[read.value] | self.cut[read.value]) & missing
            ):
                yield Constant(
                    read.value, read.site, (), (self.live[read.value] | self.cut[read.value]) & missing
                )
                return

    def constant_distances(self) -> Iterator[Constant]:
        """Yield distances between two values that networks computed, if neither has a graph."""
        hits: dict[Site, list[tuple[int, LossValue, int]]] = defaultdict(list)
        trains: set[Site] = set()
        for loss in self.losses:
            for number in self.terms(loss.event.root)[0]:
                node = self.nodes[number]
                if self.live[number]:
                    trains.add(node.site)
                    continue
                made = {
                    each
                    for each in node.parents
                    if (self.cut[each] | self.frozen[each]) and not self.live[each]
                }
                if node.op in DISTANCES and len(made) > 1:
                    cut = next(iter(self.cuts(number, self.cut[number])), number)
                    hits[node.site].append((cut, loss, self.cut[number] | self.frozen[number]))
        for site, several in hits.items():
            if len(several) >= _TIMES and site not in trains:
                yield self._constant(several)

    def drawn_inputs(self) -> Iterator[Constant]:
        """Yield drawn or chosen values that a trained network gets, if nothing tells the network that made them.

        In a policy gradient, or with a straight-through estimator, a gradient of the maker depends on the value.
        """
        hits: dict[Site, list[tuple[int, LossValue, int]]] = defaultdict(list)
        for loss in self.losses:
            if not self.cut[loss.event.root] & loss.meant:
                continue
            below, above = sorted(self.below(loss.event.root)), self.terms(loss.event.root)[1]
            for choice in below:
                makers = self.cut[choice] & loss.meant
                if self.nodes[choice].op not in CHOICES or not makers:
                    continue
                after, enters, answered = {choice}, False, False
                for number in below:
                    parents = self.nodes[number].parents
                    if number > choice and not after.isdisjoint(parents):
                        after.add(number)
                        layer = 0
                        for parent in parents:
                            if self.nodes[parent].leaf >= 0 and self.nodes[parent].live:
                                layer |= 1 << self.nodes[parent].leaf
                        enters |= bool(layer & loss.meant & ~makers)
                        answered |= bool(self.live[number] & makers) and number not in above
                if enters and not answered:
                    hits[self.nodes[choice].site].append((choice, loss, makers))
        for several in hits.values():
            if len(several) >= _TIMES:
                yield self._constant(several)

    def first_order(self) -> Iterator[Constant]:
        """Yield derivatives without a graph that a term compares with values that have one."""
        hits: dict[Site, list[tuple[int, LossValue, int]]] = defaultdict(list)
        for loss in self.losses:
            for term in self.terms(loss.event.root)[0]:
                live = self.live[term] & loss.meant
                if not live & self.cut[term]:
                    continue
                for number in self._derivatives(term):
                    lost = self.cut[number] & live
                    points = [each for each in self.nodes[number].parents if self.nodes[each].leaf >= 0]
                    trained = any(self.stepped >> self.nodes[each].leaf & 1 for each in points)
                    if lost and points and not trained:
                        hits[self.nodes[number].site].append((number, loss, lost))
        for several in hits.values():
            if len(several) >= _TIMES:
                yield self._constant(several)

    def _derivatives(self, term: int) -> Iterator[int]:
        """Yield the derivatives without a graph below a term, but none in weights, layers and detached parts."""
        todo, seen = [term], {term}
        while todo:
            number = todo.pop()
            node = self.nodes[number]
            if node.op == "grad" and not node.live:
                yield number
                continue
            weighs = node.op in SCALES and any(self.live[each] for each in node.parents)
            weighs &= any(not self.live[each] and self.cut[each] for each in node.parents)
            layer = any(
                self.nodes[p].leaf >= 0 and self.stepped >> self.nodes[p].leaf & 1 for p in node.parents
            )
            if weighs or layer or node.op in PARTS:
                continue
            for parent in node.parents:
                if parent not in seen and self.cut[parent]:
                    seen.add(parent)
                    todo.append(parent)

    def left_out(self) -> Iterator[LeftOut]:
        """Yield scalars that could be back-propagated, and that no loss includes, if they are in most windows."""
        losses = [loss for loss in self.losses if not loss.event.closure]
        derived = [parent for node in self.nodes if node.op == "grad" for parent in node.parents]
        roots = [event.root for event in self.run.of(Backward) if event.root >= 0]
        used = self.below(*roots, *derived)
        found: dict[tuple[str, Site], dict[int, int]] = defaultdict(dict)  # place -> loss -> value
        for loss, following in zip(losses, [*losses, None][1:], strict=True):
            end = following.event.root if following is not None else len(self.nodes)
            begin = max((each.event.root + 1 for each in self.losses if each.number < loss.number), default=0)
            scalars = [
                each for each in range(begin, end) if self._is_scalar(each) and self.live[each] & loss.meant
            ]
            again: dict[Site, list[int]] = defaultdict(list)
            for number in scalars:
                if number <= loss.event.root:
                    again[self.nodes[number].site].append(number)
                older = (each for each in self.nodes[number].parents if each < begin)
                meter = any(self.nodes[each].op != "leaf" for each in older)  # it adds up earlier losses
                if number not in used and not meter:
                    how = self._role(number, loss, used)
                    if how:
                        found[how, self.nodes[number].site][loss.number] = number
            for site, numbers in again.items():
                kind = self.nodes[numbers[-1]].op
                same = [each for each in numbers if self.nodes[each].op == kind]
                before, last = same[:-1], same[-1]
                only = bool(before) and last in used and used.isdisjoint(before)
                if only and all(self._are_apart(each, last) for each in before):
                    found["last", site][loss.number] = same[0]
        for (how, site), several in found.items():
            if len(several) >= (_TIMES if how == "sum" else max(_TIMES, len(losses) - 1)):
                number, value = next(iter(several.items()))
                loss = next(each for each in losses if each.number == number)
                yield LeftOut(how, site, loss, value, len(several))

    def _role(self, number: int, loss: LossValue, used: set[int]) -> str:
        """Return what a value that no loss includes seems to be; "" for a measure of the loss's outputs."""
        parts, whole = self._parts(number), self._parts(loss.event.root)
        if parts & whole:
            terms = self.terms(number)[0]
            alone = [each for each in terms if each not in used and self.live[each] & loss.meant]
            new = [each for each in alone if self._outputs(each) - self._outputs(loss.event.root)]
            return "sum" if len(self.nodes[number].parents) > 1 and new else ""
        outputs = self._outputs(number)
        return "shown" if number in self._read and outputs - self._outputs(loss.event.root) else ""

    def _are_apart(self, one: int, other: int) -> bool:
        """Return whether two values come from different layers, or share no value, as those of two batches."""
        if self.live[one] != self.live[other]:
            return True
        return all(
            self.nodes[each].leaf >= 0 or not self.live[each] for each in self.below(one) & self.below(other)
        )

    def _outputs(self, number: int) -> set[int]:
        """Return the outputs of layers from which a value was computed without another layer."""
        found, todo, seen = set[int](), [number], set[int]()
        while todo:
            value = todo.pop()
            parents = self.nodes[value].parents
            if any(self.nodes[each].leaf >= 0 for each in parents):
                found.add(value)
            elif value not in seen:
                seen.add(value)
                todo += parents
        return found

    @functools.cached_property
    def _read(self) -> set[int]:
        """The values that Python read, also through a copy."""
        read = {each.value for each in self.run.log.values.reads}
        for number in sorted(read, reverse=True):
            node = self.nodes[number]
            while node.op in SAME and len(node.parents) == 1 and node.leaf < 0:
                read.add(node.parents[0])
                node = self.nodes[node.parents[0]]
        return read

    def _is_scalar(self, number: int) -> bool:
        node = self.nodes[number]
        return node.live and node.size == 1 and node.leaf < 0 and not node.whole and node.op != "grad"

    def _parts(self, root: int) -> set[int]:
        """Return the numbers that are summed to a loss, the loss and its terms included."""
        found, todo = set[int](), [root]
        while todo and len(found) < _MOST_TERMS:
            number = todo.pop()
            node = self.nodes[number]
            made = [each for each in node.parents if self.live[each]]
            if number in found:
                continue
            found.add(number)
            if node.op in SUMS or node.op in SAME or (node.op in SCALES and len(made) == 1):
                todo += [each for each in made if self.nodes[each].size == 1 and self.nodes[each].leaf < 0]
        return found

    def _constant(self, several: list[tuple[int, LossValue, int]]) -> Constant:
        cut, _, lost = several[0]
        return Constant(cut, self.line(cut), tuple(loss for _, loss, _ in several), lost)

    # What excuses a constant term

    def _is_surrogate(self, terms: list[int], above: set[int]) -> bool:
        """Return whether a loss adds a value and subtracts it detached: only its gradient counts."""
        live = {number for number in (*terms, *above) if self.live[number]}
        todo, seen = (
            [p for number in terms if not self.live[number] for p in self.nodes[number].parents],
            set[int](),
        )
        while todo:
            number = todo.pop()
            if number in live:
                return True
            if number not in seen and self.nodes[number].op in SUMS:
                seen.add(number)
                todo += self.nodes[number].parents
        return False

    def _is_shift(self, number: int, cuts: list[int], terms: list[int], meant: int) -> bool:
        """Return whether a trained term uses the detached values as well, as log-sum-exp does with a maximum."""
        parts, todo = set[int](), [number]
        while todo:
            part = todo.pop()
            parents = self.nodes[part].parents
            if part not in parts:
                parts.add(part)
                if not any(self.nodes[each].leaf >= 0 or self.live[each] for each in parents):
                    todo += parents
        shared = {cut for cut in cuts if not self.nodes[cut].whole} & parts
        return bool(shared) and any(shared & self.below(each) for each in terms if self.live[each] & meant)

    def _is_redrawn(self, start: int, cut: int) -> bool:
        """Return whether every way from a drawn value to a term is detached once more, on purpose."""
        if self.nodes[cut].op not in CHOICES:
            return False
        todo, seen = [start], {start}
        while todo:
            number = todo.pop()
            if number == cut:
                return False
            if self.nodes[number].op not in PARTS:
                todo += set(self.nodes[number].parents) - seen
                seen.update(self.nodes[number].parents)
        return True
