"""The history of each gradient contribution, and the contributions that belong to one window.

A contribution is the gradient that one backward call adds to one parameter. It is *fresh* until a step uses it,
then *consumed*, and clearing removes it. A window lies between two steps of one optimizer. Parameters that occur
in exactly the same events form one atom, so that a thousand parameters cost no more than one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradgate.events import Backward, Cleared, Clipped, Event, Gap, Ids, Stepped, Written


@dataclass(eq=False)
class Contribution:
    """The gradient that a backward call added to one atom. ``backward`` is -1 for a gradient set by hand."""

    backward: int
    atom: Ids
    touched: bool = False  # changed by hand in a way other than scaling
    factor: float = 1.0  # the product of all factors applied by hand
    clips: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)  # numbers of the steps that used it
    cleared: int | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the contribution was cleared before a step used it, and was not written by hand."""
        return not self.consumed and self.cleared is not None and not self.touched


@dataclass(frozen=True)
class StepWindow:
    """A step, the fresh contributions that it used, and their backward calls."""

    step: int  # number of the step event
    optimizer: int
    micro: tuple[int, ...]  # numbers of the backward events, in order
    fresh: tuple[Contribution, ...]
    stale: tuple[Contribution, ...]  # already used by an earlier step of the same optimizer

    @property
    def parameters(self) -> Ids:
        """The parameters that got a gradient in this window."""
        return frozenset().union(*(contribution.atom for contribution in self.fresh))


class History:
    """Follows the contributions through the events of a run.

    Args:
        events: events of the run, in order.
        owners: for each parameter, the optimizers that hold it.
    """

    def __init__(self, events: Sequence[Event], owners: Mapping[int, Iterable[int]]) -> None:
        self._events = events
        self._owners = owners
        self.contributions: list[Contribution] = []
        self.windows: list[StepWindow] = []
        self._atoms: dict[Ids, list[Ids]] = defaultdict(list)
        self._standing: dict[Ids, list[Contribution]] = defaultdict(list)  # not cleared yet, by atom
        self._resuming: set[int] = set()  # optimizers without a step since the last gap
        self._split()
        for number, event in enumerate(events):
            self._follow(number, event)

    def atoms(self, ids: Ids) -> Sequence[Ids]:
        """Return the atoms of a set of parameters."""
        return self._atoms.get(ids, ())

    def _split(self) -> None:
        names = ("reached", "full", "used", "parameters")
        named = (getattr(event, name, None) for event in self._events for name in names)
        sets = list(dict.fromkeys(ids for ids in named if isinstance(ids, frozenset)))
        held_by: dict[int, list[int]] = defaultdict(list)  # parameter: indices of the sets that contain it
        for place, members in enumerate(sets):
            for number in members:
                held_by[number].append(place)
        grouped: dict[tuple[tuple[int, ...], Ids], list[int]] = defaultdict(list)
        for number, places in held_by.items():
            grouped[tuple(places), frozenset(self._owners.get(number, ()))].append(number)
        for (held, _), numbers in grouped.items():
            atom = frozenset(numbers)
            for place in held:
                self._atoms[sets[place]].append(atom)

    def _follow(self, number: int, event: Event) -> None:
        if isinstance(event, Backward):
            for atom in self.atoms(event.reached):
                self._add(number, atom)
        elif isinstance(event, Cleared):
            for atom in self.atoms(event.full):
                self._clear(atom, number)
        elif isinstance(event, Written) and event.target == "gradient":
            for atom in self.atoms(event.parameters):
                self._write(atom, event, number)
        elif isinstance(event, Clipped):
            for atom in self.atoms(event.parameters):
                for contribution in self._standing[atom]:
                    contribution.clips.append(number)
        elif isinstance(event, Stepped):
            self._use(number, event)
        elif isinstance(event, Gap):
            self._skip_gap()

    def _skip_gap(self) -> None:
        """Forget the unfinished windows on either side of a gap: events in the gap are unknown."""
        standing = {id(each) for several in self._standing.values() for each in several}
        self.contributions = [
            each for each in self.contributions if each.consumed or id(each) not in standing
        ]
        self._standing.clear()
        self._resuming = {event.optimizer for event in self._events if isinstance(event, Stepped)}

    def _add(self, number: int, atom: Ids) -> None:
        contribution = Contribution(number, atom)
        self.contributions.append(contribution)
        self._standing[atom].append(contribution)

    def _clear(self, atom: Ids, number: int) -> None:
        for contribution in self._standing.pop(atom, ()):
            contribution.cleared = number

    def _write(self, atom: Ids, event: Written, number: int) -> None:
        if event.factor == 0:
            self._clear(atom, number)
            return
        if not self._standing[atom]:
            self._add(-1, atom)
        for contribution in self._standing[atom]:
            if event.factor is None:
                contribution.touched = True
            else:
                contribution.factor *= event.factor

    def _use(self, number: int, event: Stepped) -> None:
        fresh: list[Contribution] = []
        stale: list[Contribution] = []
        for atom in self.atoms(event.used):
            for contribution in self._standing[atom]:
                (stale if self._used_by(contribution, event.optimizer) else fresh).append(contribution)
                contribution.consumed.append(number)
        if event.optimizer in self._resuming:  # the window began in the gap
            self._resuming.discard(event.optimizer)
            return
        micro = tuple(sorted({contribution.backward for contribution in fresh if contribution.backward >= 0}))
        self.windows.append(StepWindow(number, event.optimizer, micro, tuple(fresh), tuple(stale)))

    def _used_by(self, contribution: Contribution, optimizer: int) -> bool:
        return any(
            getattr(self._events[step], "optimizer", None) == optimizer for step in contribution.consumed
        )
