"""A run as rules see it: what became of each gradient contribution, and which belong to one window.

A contribution is what one backward call added to one parameter. It is *fresh* until a step uses it, then
*consumed*; clearing takes it away. A window is what lies between two steps of one optimizer. Parameters that every
event treats alike are kept together as one atom, so that this costs the same for ten parameters as for a thousand.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gradgate.events import (
    Backward,
    Cleared,
    Clipped,
    Ended,
    Event,
    Frame,
    Gap,
    Ids,
    Log,
    OptimizerMade,
    Parameter,
    Site,
    Stepped,
    Written,
)


@dataclass(eq=False)
class Contribution:
    """What one backward call added to the parameters of one atom. ``backward`` is -1 for a gradient set by hand."""

    backward: int
    atom: Ids
    touched: bool = False  # written by hand in a way that is not a factor
    factor: float = 1.0  # multiplied by hand
    clips: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)  # steps
    cleared: int | None = None


@dataclass(frozen=True)
class Window:
    """A step, the backward calls whose fresh contributions it used, and their contributions."""

    step: int  # number of the event
    optimizer: int
    micro: tuple[int, ...]  # numbers of the backward events, in order
    fresh: tuple[Contribution, ...]
    stale: tuple[Contribution, ...]  # used before by a step of the same optimizer

    @property
    def parameters(self) -> Ids:
        """Those that got a gradient in this window."""
        return frozenset().union(*(one.atom for one in self.fresh))


class Run:
    """A log, and what follows from it. Events are known by their place in ``events``."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.events = log.events
        self.parameters = log.parameters
        self.contributions: list[Contribution] = []
        self.windows: list[Window] = []
        self.owners: dict[int, set[int]] = defaultdict(set)  # parameter: optimizers that hold it
        self.stepping: Counter[int] = Counter()  # optimizer: its steps
        self._atoms: dict[Ids, tuple[Ids, ...]] = {}
        self._resuming: set[int] = set()  # optimizers that have not stepped since a gap
        for event in self.of(OptimizerMade):
            for group in event.groups:
                for number in group.parameters:
                    self.owners[number].add(event.optimizer)
        for event in self.of(Stepped):
            self.stepping[event.optimizer] += 1
        self._split()
        self._follow()

    # Lookups

    def of(self, *kinds: type[Event]) -> list:  # type: ignore[type-arg]
        """Return the events of some kinds, in order."""
        return [event for event in self.events if isinstance(event, kinds)]

    def numbered(self, *kinds: type[Event]) -> Iterator[tuple[int, Event]]:
        """Yield number and event of some kinds."""
        return ((number, event) for number, event in enumerate(self.events) if isinstance(event, kinds))

    def backward(self, number: int) -> Backward:
        """Return the backward event of that number."""
        event = self.events[number]
        assert isinstance(event, Backward)  # noqa: S101  (numbers of backwards come from this class alone)
        return event

    def stepped(self, number: int) -> Stepped:
        """Return the step event of that number."""
        event = self.events[number]
        assert isinstance(event, Stepped)  # noqa: S101
        return event

    @functools.cached_property
    def made(self) -> dict[int, list[OptimizerMade]]:
        """Optimizers by number: how they were made, and what was added."""
        made = defaultdict(list)
        for event in self.of(OptimizerMade):
            made[event.optimizer].append(event)
        return made

    @functools.cached_property
    def owned(self) -> Ids:
        """Parameters that some optimizer holds."""
        return frozenset(self.owners)

    @functools.cached_property
    def reached(self) -> Ids:
        """Parameters that some backward call reached, or some step had a gradient of."""
        found: set[int] = set()
        for reach in {event.reached for event in self.of(Backward)}:
            found |= reach
        for used in {event.used for event in self.of(Stepped)}:
            found |= used
        return frozenset(found)

    @functools.cached_property
    def by_backward(self) -> dict[int, list[Contribution]]:
        """Contributions by the backward call that made them."""
        found = defaultdict(list)
        for contribution in self.contributions:
            found[contribution.backward].append(contribution)
        return found

    @property
    def ended(self) -> str:
        """How the run ended: "finished", "stopped" (by the watcher) or "failed"."""
        last = self.events[-1] if self.events else None
        return last.how if isinstance(last, Ended) else "stopped"

    def names(self, ids: Iterable[int], most: int = 3) -> str:
        """Return parameters in words: "fc.weight, fc.bias and 4 more"."""
        known = [self.name(number) for number in sorted(ids)]
        if len(known) <= most + 1:
            return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]])) if known else "none"
        return f"{', '.join(known[:most])} and {len(known) - most} more"

    def name(self, number: int) -> str:
        """Return what the user calls a parameter."""
        parameter = self.parameters.get(number)
        if parameter is None:
            return f"parameter {number}"
        return parameter.name or f"a parameter of shape {list(parameter.shape)}"

    def optimizer(self, number: int) -> str:
        """Return what the user calls an optimizer."""
        return self.log.optimizers.get(number, "optimizer")

    def parameter(self, number: int) -> Parameter:
        """Return what was seen of a parameter."""
        return self.parameters[number]

    # How contributions fare

    def atoms(self, ids: Ids) -> tuple[Ids, ...]:
        """Return the atoms that a set of an event consists of."""
        return self._atoms.get(ids, ())

    def _split(self) -> None:
        sets: dict[Ids, None] = {}
        for event in self.events:
            for name in ("reached", "full", "used", "parameters"):
                ids = getattr(event, name, None)
                if isinstance(ids, frozenset):
                    sets[ids] = None
        for ids in self.owners.values():
            del ids
        signatures: dict[int, list[int]] = defaultdict(list)
        for place, members in enumerate(sets):
            for number in members:
                signatures[number].append(place)
        grouped: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, signature in signatures.items():
            key = (*signature, -1, *sorted(self.owners.get(number, ())))
            grouped[key].append(number)
        atoms = {signature: frozenset(numbers) for signature, numbers in grouped.items()}
        inside: dict[int, list[Ids]] = defaultdict(list)
        for key, atom in atoms.items():
            for place in key[: key.index(-1)]:
                inside[place].append(atom)
        self._atoms = {ids: tuple(inside[place]) for place, ids in enumerate(sets)}

    def _follow(self) -> None:
        standing: dict[Ids, list[Contribution]] = defaultdict(list)
        for number, event in enumerate(self.events):
            if isinstance(event, Backward):
                for atom in self.atoms(event.reached):
                    self._add(standing, number, atom)
            elif isinstance(event, Cleared):
                for atom in self.atoms(event.full):
                    self._clear(standing, atom, number)
            elif isinstance(event, Written) and event.target == "gradient":
                for atom in self.atoms(event.parameters):
                    self._write(standing, atom, event, number)
            elif isinstance(event, Clipped):
                for atom in self.atoms(event.parameters):
                    for contribution in standing[atom]:
                        contribution.clips.append(number)
            elif isinstance(event, Stepped):
                self._use(standing, number, event)
            elif isinstance(event, Gap):
                self._pass_over(standing)

    def _pass_over(self, standing: dict[Ids, list[Contribution]]) -> None:
        """Forget half a window on either side of a gap: what became of it is not known."""
        lost = {id(one) for several in standing.values() for one in several if not one.consumed}
        self.contributions = [one for one in self.contributions if id(one) not in lost]
        standing.clear()
        self._resuming = set(self.stepping)

    def _add(self, standing: dict[Ids, list[Contribution]], number: int, atom: Ids) -> None:
        contribution = Contribution(number, atom)
        self.contributions.append(contribution)
        standing[atom].append(contribution)

    @staticmethod
    def _clear(standing: dict[Ids, list[Contribution]], atom: Ids, number: int) -> None:
        for contribution in standing.pop(atom, ()):
            contribution.cleared = number

    def _write(self, standing: dict[Ids, list[Contribution]], atom: Ids, event: Written, number: int) -> None:
        if event.factor == 0:
            self._clear(standing, atom, number)
            return
        if not standing[atom]:
            self._add(standing, -1, atom)
        for contribution in standing[atom]:
            if event.factor is None:
                contribution.touched = True
            else:
                contribution.factor *= event.factor

    def _use(self, standing: dict[Ids, list[Contribution]], number: int, event: Stepped) -> None:
        fresh: list[Contribution] = []
        stale: list[Contribution] = []
        for atom in self.atoms(event.used):
            for contribution in standing[atom]:
                before = [
                    step for step in contribution.consumed if self.stepped(step).optimizer == event.optimizer
                ]
                (stale if before else fresh).append(contribution)
                contribution.consumed.append(number)
        if event.optimizer in self._resuming:  # its window began in the gap
            self._resuming.discard(event.optimizer)
            return
        micro = tuple(sorted({one.backward for one in fresh if one.backward >= 0}))
        self.windows.append(Window(number, event.optimizer, micro, tuple(fresh), tuple(stale)))

    # Windows

    def by_line(self, micro: Iterable[int]) -> dict[Site, list[int]]:
        """Group backward calls by where they were made."""
        found: dict[Site, list[int]] = defaultdict(list)
        for number in micro:
            found[self.events[number].site].append(number)
        return found

    def accumulating(self) -> Iterator[tuple[int, Site, list[tuple[Window, list[int]]]]]:
        """Yield optimizer, backward line and windows wherever windows hold several backward calls of one line."""
        lines: dict[tuple[int, Site], list[tuple[Window, list[int]]]] = defaultdict(list)
        for window in self.windows:
            if sum(self.backward(number).closure for number in window.micro) > 1:
                continue  # the optimizer asks its closure several times; a trainer's runs once
            for site, micro in self.by_line(window.micro).items():
                if any(self.backward(number).managed for number in micro):
                    continue
                lines[window.optimizer, site].append((window, micro))
        for (optimizer, site), windows in lines.items():
            if any(len(micro) > 1 for _, micro in windows):
                yield optimizer, site, windows


def innermost(site: Site) -> Frame:
    """Return the line that a site stands for."""
    return site[0] if site else Frame("", 0, "")
