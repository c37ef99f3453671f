"""A run as rules see it: events, the history of gradients, and the names of parameters and optimizers."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._history import Contribution, History, StepWindow
from gradgate.checker.analysis._optimizer_names import optimizer_names
from gradgate.events import (
    Backward,
    Differentiated,
    Ended,
    Event,
    Frame,
    Ids,
    Log,
    ModelLoaded,
    OptimizerMade,
    Site,
    Stepped,
    Term,
    Written,
)

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=Event)
_Windows: TypeAlias = list[tuple[StepWindow, list[int]]]


def once(function: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """Cache the results of a function of a run. The function's other arguments must be hashable."""

    @functools.wraps(function)
    def known(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = function, args
        if key not in run.results:
            run.results[key] = function(run, *args, **kwargs)
        return cast("T", run.results[key])

    return known


class Run:
    """A log, and the data that rules derive from it. An event's number is its index in ``events``."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.results: dict[object, object] = {}  # of functions that are computed once
        self.events = log.events
        self._by_kind: dict[type[Event], list[tuple[int, Event]]] = defaultdict(list)
        for number, event in enumerate(log.events):
            self._by_kind[type(event)].append((number, event))
        self.parameters = log.parameters
        self.owners: dict[int, set[int]] = defaultdict(set)  # parameter: the optimizers that hold it
        self.stepping: Counter[int] = Counter()  # optimizer: the number of its steps
        for event in self.of(OptimizerMade):
            for group in event.groups:
                for number in group.parameters:
                    self.owners[number].add(event.optimizer)
        for event in self.of(Stepped):
            self.stepping[event.optimizer] += 1
        self._history = History(log.events, self.owners)
        self.contributions = self._history.contributions
        self.windows = self._history.windows
        self.atoms = self._history.atoms

    # Lookups

    def of(self, *kinds: type[Event]) -> list:  # type: ignore[type-arg]
        """Return the events of these kinds, in order."""
        return [event for _, event in self.numbered(*kinds)]

    def numbered(self, *kinds: type[E]) -> Iterator[tuple[int, E]]:
        """Yield the number and the event for each event of these kinds, in order."""
        several = [self._by_kind.get(kind, ()) for kind in kinds]
        found = several[0] if len(several) == 1 else sorted(chain(*several), key=itemgetter(0))
        return cast("Iterator[tuple[int, E]]", iter(found))

    def backward(self, number: int) -> Backward:
        """Return the backward event of this number."""
        event = self.events[number]
        assert isinstance(event, Backward)  # noqa: S101  (only this class hands out numbers of backward calls)
        return event

    def terms(self, number: int, ids: Ids = frozenset()) -> list[Term]:
        """Return the terms of a backward call's loss; with ``ids``, only the terms that reach these parameters.

        A line's first calls show which parameters each term reaches. Later calls with the same terms reach the same
        parameters.
        """
        event = self.backward(number)
        terms: Sequence[Term] = event.terms
        if not any(term.reach for term in terms):
            first = self._with_reach.get((event.site, event.reached, len(terms)), terms)
            terms = [replace(term, reach=known.reach) for term, known in zip(terms, first, strict=True)]
        return [term for term in terms if not ids or not term.reach or term.reach & ids]

    @functools.cached_property
    def _with_reach(self) -> dict[tuple[Site, Ids, int], tuple[Term, ...]]:
        events = [event for event in self.of(Backward) if any(term.reach for term in event.terms)]
        return {(event.site, event.reached, len(event.terms)): event.terms for event in events}

    def calls_at(self, site: Site) -> list[Backward]:
        """Return the backward events of a line."""
        return [event for event in self.of(Backward) if event.site == site]

    def calls_reaching(self, ids: Ids) -> list[Backward]:
        """Return the backward events whose loss reaches one of these parameters."""
        return [event for event in self.of(Backward) if event.reached & ids]

    def written(self, target: Literal["gradient", "value"]) -> list[Written]:
        """Return the events of writes to gradients, or to values of parameters."""
        return [event for event in self.of(Written) if event.target == target]

    def written_to(self, ids: Ids) -> bool:
        """Return whether the script writes or loads values of these parameters."""
        return any(event.parameters & ids for event in (*self.written("value"), *self.of(ModelLoaded)))

    def stepped(self, number: int) -> Stepped:
        """Return the step event of this number."""
        event = self.events[number]
        assert isinstance(event, Stepped)  # noqa: S101
        return event

    @functools.cached_property
    def made(self) -> dict[int, list[OptimizerMade]]:
        """For each optimizer, the event that constructed it and the events that added groups to it."""
        return grouped((event.optimizer, event) for event in self.of(OptimizerMade))

    def held(self, optimizer: int) -> Ids:
        """Return the parameters that an optimizer was given."""
        return frozenset(number for number, owners in self.owners.items() if optimizer in owners)

    def optimizers_of(self, ids: Iterable[int]) -> frozenset[int]:
        """Return the optimizers that hold one of these parameters."""
        return frozenset().union(*(self.owners.get(number, ()) for number in ids))

    def steps(self, optimizer: int) -> list[int]:
        """Return the numbers of an optimizer's steps, in order."""
        return [number for number, event in self.numbered(Stepped) if event.optimizer == optimizer]

    def watched(self, optimizer: int) -> int:
        """Return the number of an optimizer's closely watched steps. Some facts are known only of these."""
        return sum(self.stepped(number).seen for number in self.steps(optimizer))

    def words(self, ids: Iterable[int]) -> set[str]:
        """Return the parts of parameters' names: "head" and "weight" of "head.weight"."""
        return {part for number in ids for part in self.name(number).split(".")}

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The user's files that were running at events of losses, modules and optimizers."""
        kinds = (Backward, Differentiated, OptimizerMade, Stepped)
        sites = dict.fromkeys(event.site for event in self.of(*kinds))
        return tuple(dict.fromkeys(frame.file for site in sites for frame in site))

    @functools.cached_property
    def owned(self) -> Ids:
        """The parameters that at least one optimizer holds."""
        return frozenset(number for number, owners in self.owners.items() if owners)  # lookups add empty sets

    @functools.cached_property
    def reached(self) -> Ids:
        """The parameters that a backward call reached or that had a gradient in a step."""
        sets = {event.reached for event in self.of(Backward)} | {event.used for event in self.of(Stepped)}
        return frozenset().union(*sets)

    @functools.cached_property
    def moved(self) -> Ids:
        """The parameters that a step changed."""
        return frozenset().union(*{event.moved for event in self.of(Stepped)})

    @functools.cached_property
    def by_backward(self) -> dict[int, list[Contribution]]:
        """The contributions of each backward call."""
        return grouped((contribution.backward, contribution) for contribution in self.contributions)

    @property
    def ended(self) -> str:
        """How the run ended: "finished", "stopped" (by the watcher) or "failed"."""
        last = self.events[-1] if self.events else None
        return last.how if isinstance(last, Ended) else "stopped"

    def names(self, ids: Iterable[int], most: int = 3) -> str:
        """Return the names of parameters as text: "fc.weight, fc.bias and 4 more"."""
        ids = sorted(ids)
        unnamed = [
            self.parameters[n].shape for n in ids if n in self.parameters and not self.parameters[n].name
        ]
        if 1 < len(unnamed) == len(ids):
            shapes = [str(list(shape)) for shape in dict.fromkeys(unnamed)]
            of_shapes = f" of shape{'s'[: len(shapes) - 1]} {enumerated(shapes)}"
            return f"{len(ids)} parameters{of_shapes if len(shapes) <= most else ''}"
        known = [self.name(number) for number in ids]
        if len(known) <= most + 1:
            return enumerated(known) or "none"
        return f"{', '.join(known[:most])} and {len(known) - most} more"

    def name(self, number: int) -> str:
        """Return a parameter's name in the user's code."""
        parameter = self.parameters.get(number)
        if parameter is None:
            return f"parameter {number}"
        return parameter.name or f"a parameter of shape {list(parameter.shape)}"

    def optimizer(self, number: int) -> str:
        """Return an optimizer's name in the user's code."""
        return self._optimizer_names.get(number, "optimizer")

    @functools.cached_property
    def _optimizer_names(self) -> dict[int, str]:
        return optimizer_names(self.log)

    def steps_of(self, optimizer: int) -> str:
        """Return an optimizer's watched steps as text: "112 steps of opt", or "62 watched steps of opt"."""
        watched = self.watched(optimizer)
        less = "watched " if watched < self.stepping[optimizer] else ""
        return f"{watched} {less}steps of {self.optimizer(optimizer)}"

    # Windows

    def by_line(self, micro: Iterable[int]) -> dict[Site, list[int]]:
        """Group backward calls by line."""
        return grouped((self.events[number].site, number) for number in micro)

    def repeats_closure(self, window: StepWindow) -> bool:
        """Return whether an optimizer called its closure several times in one step. Trainers' closures run once."""
        return sum(self.backward(number).closure for number in window.micro) > 1

    def accumulating(self) -> Iterator[tuple[int, Site, _Windows]]:
        """Yield optimizer, line and windows for each line that calls backward several times in some window.

        If another line adds one micro-batch of the same kind to each window, the windows include its calls. An
        example is a loop over ``chunk[:-1]``, with a call for the last micro-batch after the loop.
        """
        lines: dict[tuple[int, Site], _Windows] = defaultdict(list)
        for window in self.windows:
            if self.repeats_closure(window):
                continue
            for site, micro in self.by_line(window.micro).items():
                if any(self.backward(number).managed for number in micro):
                    continue
                lines[window.optimizer, site].append((window, micro))
        for (optimizer, site), windows in lines.items():
            if any(len(micro) > 1 for _, micro in windows):
                beside = [several for (other, _), several in lines.items() if other == optimizer]
                rests = [several for several in beside if self._are_rests(several, windows)]
                yield optimizer, site, _joined([windows, *rests]) if rests else windows

    def _are_rests(self, rests: _Windows, windows: _Windows) -> bool:
        """Return whether each call of a line adds a micro-batch, of the same kind, to another line's window."""
        steps = {window.step: micro for window, micro in windows}
        if any(len(micro) > 1 for _, micro in rests) or not steps.keys() <= {
            window.step for window, _ in rests
        }:
            return False
        pairs = [(steps[window.step][0], micro[0]) for window, micro in rests if window.step in steps]
        read = [pair for pair in pairs if all(self.backward(number).terms for number in pair)]
        return bool(read) and all(self._kind(one) == self._kind(other) for one, other in read)

    def _kind(self, number: int) -> tuple[object, ...]:
        """Return what the micro-batches of one loss have in common, wherever they call backward."""
        event = self.backward(number)
        terms = [(term.kind, [(op, value) for op, value, _ in term.factors]) for term in event.terms]
        return event.reached, event.others, terms


def _joined(lines: Iterable[_Windows]) -> _Windows:
    """Merge the windows of several lines: for each window, the backward calls of all lines, in order."""
    found: dict[int, tuple[StepWindow, list[int]]] = {}
    for window, micro in chain(*lines):
        known = found.get(window.step, (window, []))[1]
        found[window.step] = window, sorted([*known, *micro])
    return [found[step] for step in sorted(found)]


def enumerated(parts: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def innermost(site: Site) -> Frame:
    """Return a site's innermost line."""
    return site[0] if site else Frame("", 0, "")
