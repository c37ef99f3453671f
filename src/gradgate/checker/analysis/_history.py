"""The history of each gradient contribution, and which ones belong to one window.

A contribution is what one backward call added to one parameter. It is *fresh* until a step uses it, then
*consumed*; clearing removes it. A window lies between two steps of one optimizer. Parameters that every event
treats alike form one atom, so that a thousand parameters cost no more than ten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradgate.events import Backward, Cleared, Clipped, Event, Gap, Ids, Stepped, Written


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

    @property
    def is_lost(self) -> bool:
        """Whether it was cleared before any step used it, and not written by hand."""
        return not self.consumed and self.cleared is not None and not self.touched


@dataclass(frozen=True)
class StepWindow:
    """A step, the backward calls whose fresh contributions it used, and their contributions."""

    step: int  # number of the event
    optimizer: int
    micro: tuple[int, ...]  # numbers of the backward events, in order
    fresh: tuple[Contribution, ...]
    stale: tuple[Contribution, ...]  # used before by a step of the same optimizer

    @property
    def parameters(self) -> Ids:
        """Those that got a gradient in this window."""
        return frozenset().union(*(contribution.atom for contribution in self.fresh))


class History:
    """Follows the contributions through the events of a run.

    Args:
        events: what happened, in order.
        owners: of a parameter the optimizers that hold it.
    """

    def __init__(self, events: Sequence[Event], owners: Mapping[int, Iterable[int]]) -> None:
        self._events = events
        self._owners = owners
        self.contributions: list[Contribution] = []
        self.windows: list[StepWindow] = []
        self._atoms: dict[Ids, tuple[Ids, ...]] = {}
        self._resuming: set[int] = set()  # optimizers that have not stepped since a gap
        self._split()
        self._follow()

    def atoms(self, ids: Ids) -> tuple[Ids, ...]:
        """Return the atoms of a set that an event names."""
        return self._atoms.get(ids, ())

    def _split(self) -> None:
        sets: dict[Ids, None] = {}
        for event in self._events:
            for name in ("reached", "full", "used", "parameters"):
                ids = getattr(event, name, None)
                if isinstance(ids, frozenset):
                    sets[ids] = None
        signatures: dict[int, list[int]] = defaultdict(list)
        for place, members in enumerate(sets):
            for number in members:
                signatures[number].append(place)
        grouped: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, signature in signatures.items():
            key = (*signature, -1, *sorted(self._owners.get(number, ())))
            grouped[key].append(number)
        atoms = {signature: frozenset(numbers) for signature, numbers in grouped.items()}
        inside: dict[int, list[Ids]] = defaultdict(list)
        for key, atom in atoms.items():
            for place in key[: key.index(-1)]:
                inside[place].append(atom)
        self._atoms = {ids: tuple(inside[place]) for place, ids in enumerate(sets)}

    def _follow(self) -> None:
        standing: dict[Ids, list[Contribution]] = defaultdict(list)
        for number, event in enumerate(self._events):
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
                self._skip_gap(standing)

    def _skip_gap(self, standing: dict[Ids, list[Contribution]]) -> None:
        """Forget the unfinished windows on either side of a gap: their fate isn't known."""
        lost = {
            id(contribution)
            for several in standing.values()
            for contribution in several
            if not contribution.consumed
        }
        self.contributions = [
            contribution for contribution in self.contributions if id(contribution) not in lost
        ]
        standing.clear()
        self._resuming = {event.optimizer for event in self._events if isinstance(event, Stepped)}

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
                before = [step for step in contribution.consumed if self._optimizer(step) == event.optimizer]
                (stale if before else fresh).append(contribution)
                contribution.consumed.append(number)
        if event.optimizer in self._resuming:  # its window began in the gap
            self._resuming.discard(event.optimizer)
            return
        micro = tuple(sorted({contribution.backward for contribution in fresh if contribution.backward >= 0}))
        self.windows.append(StepWindow(number, event.optimizer, micro, tuple(fresh), tuple(stale)))

    def _optimizer(self, step: int) -> int:
        event = self._events[step]
        assert isinstance(event, Stepped)  # noqa: S101  (numbers of steps come from this class alone)
        return event.optimizer
