"""Defines the interface of all coordinators, and the coordinator of a single process, which does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradgate.ranks._status_exchange import RankStatus, Totals
from gradgate.tally import Tally

T = TypeVar("T")

Count: TypeAlias = "int | float | Tensor"

Gathered: TypeAlias = "tuple[list[list[Tensor]], list[list[Tensor]], Any]"
"""Each tensor's rows on the ranks before this one, its rows on the ranks after it, and the tree of the tensors."""


class Coordinator:
    """Coordinates a window over ranks. This class is for one process that trains alone: no method communicates."""

    rank: int = 0
    count: int = 1
    sharded: bool = (
        False  # whether backward passes reduce-scatter gradients, so that all ranks run equally many passes
    )
    tallies: dict[str, Tally] | None = None  # each loss's sum and count over several ranks; otherwise None
    unit_of: Callable[[Count], Count] | None = (
        None  # chooses a sum's unit by its first count; None: that count
    )
    own_micro_batches: float = math.inf  # later ones repeat the last one, because another rank has more

    def hold(self) -> None:
        """Begin a window: keep the modules' wrappers from synchronizing on their own."""

    def even(self, window: Iterable[T]) -> Iterable[T]:
        """Return the window. If every pass needs all ranks, extend it to match the rank with the longest window."""
        return window

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch."""

    def exchange(self, status: Callable[[], RankStatus]) -> Totals | None:
        """Exchange statuses at the end of a window; return the counts and units over all ranks.

        None if this process trains alone, so that ``status`` need not be computed.

        Raises:
            RankError: another rank has stopped. No rank then steps.
        """
        return None

    def add(self) -> None:
        """Add the sums of all ranks in ``.grad``. Call this after :meth:`exchange`, with sums in its units."""

    def firsts(self, first: Callable[[], tuple[float, float] | None]) -> list[tuple[float, float]]:
        """Return the squared norm and item count of each rank's first micro-batch, after :meth:`exchange`."""
        own = first()
        return [] if own is None else [own]

    def gather_objects(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, in their order."""
        return [mine]

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        """Return each tensor's rows on the ranks before and after this one, and the tree of the tensors."""
        return [[] for _ in tensors], [[] for _ in tensors], tree

    def replays(self) -> bool:
        """Return whether all ranks run the window again: memory ran out on some, and nothing else failed."""
        return True

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        """Report to the other ranks that this one stops in the window, so that they do not wait for it."""

    def report_outside(self, error: BaseException) -> None:
        """Report an error between two runs of a window, where all ranks exchange statuses."""

    def explained(self, error: BaseException) -> BaseException:
        """Return the error; if another rank missed a collective, return an error that names that rank."""
        return error

    def discard(self) -> None:
        """Clean up the modules after a rolled-back window."""

    def release(self) -> None:
        """End the window: let the wrappers synchronize as before."""


ALONE = Coordinator()
"""It has no state, so all accumulators share it."""
