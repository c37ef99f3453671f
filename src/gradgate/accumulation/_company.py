"""The other ranks, as one update meets them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from gradgate.accumulation._out_of_memory import is_out_of_memory
from gradgate.accumulation._over_ranks import said_by, tell_of
from gradgate.accumulation._running_sum import RunningSum
from gradgate.accumulation._sums import Sums
from gradgate.accumulation._windows import check_window
from gradgate.errors import RankError
from gradgate.ranks import Engine, Meeting, Said, Sharded, is_lost, lost
from gradgate.tally import Tally

T = TypeVar("T")


class ReplayError(RankError):
    """Memory ran out on another rank: the window is run again by all."""


class Company:
    """Holds their engine while a window is open, and hears them when it ends. Alone, it does nothing.

    Attributes:
        engine: what holds the parameters over ranks; None where one process trains alone.
        may_replay: whether this window can be run again where memory runs out.
        sent: whether the last backward pass has added gradients up over ranks already.
    """

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.may_replay = False
        self.sent = False
        self._meeting: Meeting | None = None
        self._mine: float = math.inf  # micro-batches of this rank; what comes after them keeps others company

    @property
    def sharded(self) -> Sharded | None:
        """The engine, if it adds up within its backward passes."""
        return self.engine if isinstance(self.engine, Sharded) else None

    @property
    def tallies(self) -> dict[str, Tally] | None:
        """Each loss over all ranks, once they have met."""
        return None if self._meeting is None else self._meeting.tallies

    def hold(self) -> None:
        """Take over from the engine."""
        if self.engine is not None:
            self.engine.hold()

    def discard(self) -> None:
        """Drop what the window that is rolled back has left in the engine."""
        if self.engine is not None:
            self.engine.discard()

    def release(self) -> None:
        """Give the engine back."""
        if self.engine is not None:
            self.engine.release()

    def even(self, window: Iterable[T]) -> Iterable[T]:
        """Return what this rank goes through: its own micro-batches, and more where others would wait for it."""
        if self.sharded is None:
            return window
        check_window(window, "micro_batches")
        mine = window if isinstance(window, Sequence) else list(window)
        self._mine = len(mine)
        return self.sharded.even(mine)

    def begin(self, number: int, expected: int) -> None:
        """Say which micro-batch comes, of how many."""
        if self.engine is not None:
            self.engine.begin(last=number >= expected)

    def counts(self, number: int) -> bool:
        """Say whether a micro-batch is this rank's own."""
        return number <= self._mine

    def own(self, number: int) -> int:
        """Return how many of so many micro-batches are this rank's own."""
        return int(min(number, self._mine))

    def meet(self, sums: Sums) -> Meeting:
        """Wait for the other ranks at the end of the window.

        Raises:
            RankError: another rank has stopped in this window; nobody steps.
        """
        sums.check_whole()
        sums.check_untouched()
        if self.sharded is not None:
            self.sharded.check_reduced()
        said = said_by(sums, sums.parameters)
        meeting = self._hold(said)
        while meeting.coming:  # some had their last backward pass before them
            meeting = self._hold(said)
        self._meeting = meeting
        return meeting

    def _hold(self, said: Said) -> Meeting:
        if self.engine is None:
            raise RankError("meet: this process trains alone.")
        meeting = Meeting.hold(self.engine.ranks, said)
        stopped = meeting.stopped(self.engine.ranks.rank)
        if stopped is not None:
            self._meeting = meeting
            if self.all_replay:
                raise ReplayError(stopped)
            raise RankError(f"update: {stopped} Nothing was stepped on any rank. Mend what it says, there.")
        return meeting

    @property
    def overlaps(self) -> bool:
        """Whether gradients are to go over ranks during the last backward pass; not where it may be run again."""
        return self.engine is not None and self.engine.buckets is not None and not self.may_replay

    @contextmanager
    def last_backward(self, sums: Sums, chosen: RunningSum) -> Iterator[None]:
        """Send gradients while the block runs a window's last backward pass, if all ranks come to theirs.

        Args:
            sums: of the window.
            chosen: the sum of its only loss, which stands in ``.grad`` in the unit of this pass.

        Raises:
            RankError: another rank has stopped in this window, or stops in this pass; nobody steps.
        """
        unit = None if chosen.unit is None else float(chosen.unit)
        said = Said(phase="last", counts={chosen.name: 0}, units={} if unit is None else {chosen.name: unit})
        meeting = self._hold(said)
        buckets = self.engine.buckets if self.engine is not None else None
        if buckets is None or not meeting.all_at_last:
            yield
            return
        common = meeting.units[chosen.name]
        buckets.start(1.0 if unit is None else unit / common)
        try:
            yield
        except BaseException:
            with suppress(RankError):
                buckets.finish(failed=True)
            raise
        buckets.finish()
        chosen.unit = common
        sums.remember()
        self.sent = True

    @property
    def all_replay(self) -> bool:
        """Whether all run the window again: memory ran out on some, and nothing else went wrong."""
        if self.engine is None:
            return self.may_replay
        return self.may_replay and self._meeting is not None and self._meeting.replays

    def explained(self, error: BaseException) -> BaseException:
        """Return the error of a pass that waited for another rank in vain as what it is; others as they are."""
        if self.sharded is None or not is_lost(error):
            return error
        return lost(self.sharded.ranks, error)

    def tell_of(self, error: BaseException) -> None:
        """Tell the others that this one stops, so that they do not wait for it; once, and as far as they hear."""
        if self.engine is None or self._meeting is not None or self.engine.ranks.broken:
            return
        if self.sharded is not None or not isinstance(error, Exception):
            return  # they may stand in the middle of a pass; and an interrupt waits for nobody
        with suppress(RankError):
            self._meeting = tell_of(self.engine, error, replay=self.may_replay and is_out_of_memory(error))
