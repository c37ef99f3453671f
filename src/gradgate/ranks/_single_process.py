"""Defines the interface of all coordinators, and the coordinator of a single process, which does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from gradgate.ranks._fsdp import ShardedEngine
from gradgate.ranks._gather_rows import Gathered
from gradgate.ranks._status_exchange import RankStatus
from gradgate.tally import Tally

T = TypeVar("T")


class WindowSums(Protocol):
    """The gradient sums of a window, as a coordinator uses them."""

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The owned parameters."""

    def check(self) -> None:
        """Raise if a backward pass failed midway or other code has changed the sums."""

    @property
    def first(self) -> Callable[[], tuple[float, float] | None]:
        """Returns the squared gradient norm and the items of the first micro-batch, or None if not measured."""

    def status(self) -> RankStatus:
        """Return the status that this rank reports at the end of the window."""

    def combine(self, totals: dict[str, float] | None = None, units: dict[str, float] | None = None) -> Any:
        """Combine the sums of all losses in ``.grad``; return the factor that turns them into means."""

    def all_reduced(self, name: str, unit: float) -> None:
        """Record that ``.grad`` holds a loss's sum over all ranks, in this unit."""


class SingleProcess:
    """The coordinator of one process that trains alone. No method communicates.

    Attributes:
        rank: this process's rank.
        count: the number of ranks.
        sharded: the engine, if it all-reduces within its backward passes.
        overlaps: whether to all-reduce gradients during the last backward pass.
        all_reduced: whether the last backward pass has all-reduced the gradients.
        tallies: each loss's sum and count over all ranks, after a status exchange; None in a single process.
        own_micro_batches: the number of this rank's own micro-batches. Later micro-batches repeat the last one,
            because another rank has more.
    """

    rank: int = 0
    count: int = 1
    sharded: ShardedEngine | None = None
    overlaps: bool = False
    all_reduced: bool = False
    tallies: dict[str, Tally] | None = None
    own_micro_batches: float = math.inf

    def start(self, *, may_replay: bool) -> None:
        """Begin a window. With ``may_replay``, it can run again if memory runs out."""

    def hold(self) -> None:
        """Keep the engine from synchronizing on its own."""

    def even(self, window: Iterable[T]) -> Iterable[T]:
        """Return the window. If every pass needs all ranks, extend it to match the rank with the longest window."""
        return window

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch."""

    @contextmanager
    def overlapping(self, sums: WindowSums, name: str, unit: float | None) -> Iterator[None]:
        """All-reduce gradients while the block runs the window's last backward pass."""
        yield

    def combine(self, sums: WindowSums) -> float | None:
        """Add up the sums of all losses and ranks in ``.grad``; return the factor still to be applied.

        Returns None if every count is zero on all ranks.

        Raises:
            RankError: another rank has stopped in this window; no rank steps.
        """
        factor: float | None = sums.combine()
        return factor

    def firsts(self, sums: WindowSums) -> list[tuple[float, float]]:
        """Return the squared norm and the items of each rank's first micro-batch. Call this after ``combine``."""
        first = sums.first()
        return [] if first is None else [first]

    def gather_objects(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, in their order."""
        return [mine]

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        """Return each tensor's rows on the ranks before and after this one, and the tree of the tensors."""
        return [[] for _ in tensors], [[] for _ in tensors], tree

    def replays(self, may_replay: bool) -> bool:
        """Return whether all ranks run the window again: memory ran out on some, and nothing else failed."""
        return may_replay

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        """Report to the other ranks that this one stops in the window, so that they do not wait for it."""

    def report_outside(self, error: BaseException) -> None:
        """Report an error between two runs of a window, where all ranks exchange statuses."""

    def explained(self, error: BaseException) -> BaseException:
        """Return the error, or, if a rank missed a collective, an error that names this rank."""
        return error

    def discard(self) -> None:
        """Clean up the engine after a rolled-back window."""

    def release(self) -> None:
        """End the window: let the engine synchronize as before."""


ALONE = SingleProcess()
"""It has no state, so all accumulators share it."""
