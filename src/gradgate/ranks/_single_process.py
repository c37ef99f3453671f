"""A single process: nothing to agree on. What an accumulator asks of ranks, in the form that does nothing."""

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
        """Raise unless the sums are whole and untouched."""

    @property
    def first(self) -> Callable[[], tuple[float, float] | None]:
        """Returns the squared norm of the first micro-batch's gradient, and its items, if that is measured."""

    def status(self) -> RankStatus:
        """Return this rank's counts, totals, units, and which gradients it has."""

    def combine(self, totals: dict[str, float] | None = None, units: dict[str, float] | None = None) -> Any:
        """Bring the sums of all losses together in ``.grad``; return the factor that makes means of them."""

    def all_reduced(self, name: str, unit: float) -> None:
        """Take it that the sum of a loss is that of all ranks, in this unit."""


class SingleProcess:
    """One process that trains alone. There is nothing to agree on and nobody to wait for.

    Attributes:
        rank: of this process.
        count: of ranks.
        sharded: the engine, if it all-reduces within its backward passes.
        overlaps: whether gradients are to be all-reduced during the last backward pass.
        all_reduced: whether the last backward pass has done so.
        tallies: each loss over all ranks, once they have exchanged statuses; None alone.
        own_micro_batches: of this rank. Later ones repeat the last, where other ranks would wait for it.
    """

    rank: int = 0
    count: int = 1
    sharded: ShardedEngine | None = None
    overlaps: bool = False
    all_reduced: bool = False
    tallies: dict[str, Tally] | None = None
    own_micro_batches: float = math.inf

    def start(self, *, may_replay: bool) -> None:
        """Begin a window. With ``may_replay`` it can be rerun where memory runs out."""

    def hold(self) -> None:
        """Let the engine synchronize nothing by itself."""

    def even(self, window: Iterable[T]) -> Iterable[T]:
        """Return the window; longer where other ranks would wait for this one."""
        return window

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch."""

    @contextmanager
    def overlapping(self, sums: WindowSums, name: str, unit: float | None) -> Iterator[None]:
        """All-reduce gradients while the block runs a window's last backward pass."""
        yield

    def combine(self, sums: WindowSums) -> float | None:
        """Add up the sums of all losses and ranks in ``.grad``; return the factor still to be applied.

        None says that every count is zero on all ranks.

        Raises:
            RankError: another rank has stopped in this window; no rank steps.
        """
        factor: float | None = sums.combine()
        return factor

    def firsts(self, sums: WindowSums) -> list[tuple[float, float]]:
        """Return what each rank measured of its first micro-batch. Sums have to be combined."""
        first = sums.first()
        return [] if first is None else [first]

    def gather_batches(self, batch: Any) -> list[Any]:
        """Return the batches of all ranks, in their order."""
        return [batch]

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        """Return the rows of each tensor on the ranks before and after this one, and the tree that they make up."""
        return [[] for _ in tensors], [[] for _ in tensors], tree

    def replays(self, may_replay: bool) -> bool:
        """Whether all ranks rerun the window: memory ran out on some, and nothing else failed."""
        return may_replay

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        """Tell the other ranks that this one stops in the window, so that they do not wait for it."""

    def report_outside(self, error: BaseException) -> None:
        """Report an error between two runs of a window, where all ranks listen."""

    def explained(self, error: BaseException) -> BaseException:
        """Return an error that names the missing rank, for that of a pass which another rank did not join."""
        return error

    def discard(self) -> None:
        """Drop what a window that is rolled back has left in the engine."""

    def release(self) -> None:
        """End the window: let the engine synchronize as before."""


ALONE = SingleProcess()
"""It has no state."""
