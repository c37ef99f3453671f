"""The other ranks, as one update meets them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

from gradgate.accumulation._out_of_memory import is_out_of_memory
from gradgate.accumulation._over_ranks import said_by, tell_of
from gradgate.accumulation._sums import Sums
from gradgate.errors import RankError
from gradgate.reduction import Engine, Meeting, Sharded
from gradgate.tally import Tally

T = TypeVar("T")


class ReplayError(RankError):
    """Memory ran out on another rank: the window is run again by all."""


class Company:
    """Holds their engine while a window is open, and hears them when it ends. Alone, it does nothing.

    Attributes:
        engine: what holds the parameters over ranks; None where one process trains alone.
        may_replay: whether this window can be run again where memory runs out.
    """

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.may_replay = False
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

    def release(self) -> None:
        """Give the engine back."""
        if self.engine is not None:
            self.engine.release()

    def even(self, window: Iterable[T]) -> Iterable[T]:
        """Return what this rank goes through: its own micro-batches, and more where others would wait for it."""
        if self.sharded is None:
            return window
        mine = list(window)
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
        if self.engine is None:
            raise RankError("meet: this process trains alone.")
        sums.check_whole()
        sums.check_untouched()
        ranks = self.engine.ranks
        self._meeting = Meeting.hold(ranks, said_by(sums, sums.parameters))
        stopped = self._meeting.stopped(ranks.rank)
        if stopped is not None:
            if self.all_replay:
                raise ReplayError(stopped)
            raise RankError(f"update: {stopped} Nothing was stepped on any rank. Mend what it says, there.")
        return self._meeting

    @property
    def all_replay(self) -> bool:
        """Whether all run the window again: memory ran out on some, and nothing else went wrong."""
        if self.engine is None:
            return self.may_replay
        return self.may_replay and self._meeting is not None and self._meeting.replays

    def tell_of(self, error: BaseException) -> None:
        """Tell the others that this one stops, so that they do not wait for it; once, and as far as they hear."""
        if self.engine is None or self._meeting is not None or self.engine.ranks.broken:
            return
        if self.sharded is not None or not isinstance(error, Exception):
            return  # they may stand in the middle of a pass; and an interrupt waits for nobody
        with suppress(RankError):
            self._meeting = tell_of(self.engine, error, replay=self.may_replay and is_out_of_memory(error))
