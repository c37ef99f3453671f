"""Defines the interface of all coordinators, and the coordinator of a single process, which does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradgate.ranks._status_exchange import RankStatus
from gradgate.tally import Tally

T = TypeVar("T")

Gathered: TypeAlias = "tuple[list[list[Tensor]], list[list[Tensor]], Any]"
"""Each tensor's rows on the ranks before this one, its rows on the ranks after it, and the tree of the tensors."""

Combine: TypeAlias = "Callable[[dict[str, float] | None, dict[str, float] | None], float | None]"
"""Combines one process's sums in ``.grad``, given counts and units over all ranks. Returns the factor to apply."""


class SingleProcess:
    """The coordinator of one process that trains alone. No method communicates."""

    rank: int = 0
    count: int = 1
    sharded: bool = (
        False  # whether backward passes reduce-scatter gradients, so that all ranks run equally many passes
    )
    overlaps: bool = False  # whether to all-reduce gradients during the last backward pass
    all_reduced: bool = False  # whether that pass has done so
    tallies: dict[str, Tally] | None = None  # each loss's sum and count over several ranks; otherwise None
    own_micro_batches: float = math.inf  # later ones repeat the last one, because another rank has more

    def hold(self) -> None:
        """Begin a window: keep the modules' wrappers from synchronizing on their own."""

    def even(self, window: Iterable[T]) -> Iterable[T]:
        """Return the window. If every pass needs all ranks, extend it to match the rank with the longest window."""
        return window

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch."""

    @contextmanager
    def overlapping(
        self, name: str, unit: float | None, all_reduced: Callable[[str, float], object]
    ) -> Iterator[None]:
        """All-reduce gradients while the block runs the window's last backward pass."""
        yield

    def combine(self, status: Callable[[], RankStatus], combine: Combine) -> float | None:
        """Add up the sums of all losses and ranks in ``.grad``; return the factor still to be applied.

        The factor is None if every count is zero on all ranks. ``status`` returns what this rank reports, and
        ``combine`` combines this rank's sums. Raises RankError if another rank has stopped; then no rank steps.
        """
        return combine(None, None)

    def firsts(self, first: Callable[[], tuple[float, float] | None]) -> list[tuple[float, float]]:
        """Return the squared norm and item count of each rank's first micro-batch. Call this after ``combine``."""
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


ALONE = SingleProcess()
"""It has no state, so all accumulators share it."""
