"""Coordinates a window over ranks, or in one process that trains alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradgate.errors import RankError
from gradgate.pytree import tensors_in
from gradgate.ranks._ddp import Replicated
from gradgate.ranks._fsdp import FullySharded
from gradgate.ranks._process_group import RankGroup, is_lost, lost
from gradgate.ranks._status_exchange import RankStatus, Status, StatusExchange, Totals
from gradgate.tally import Count

T = TypeVar("T")

Gathered: TypeAlias = "tuple[list[list[Tensor]], list[list[Tensor]], Any]"
"""Each tensor's rows on the ranks before this one, its rows on the ranks after it, and the tree of the tensors."""


class ReplayError(RankError):
    """Memory ran out on another rank, so all ranks rerun the window."""


class Alone:
    """The coordinator of one process that trains alone. Does what :class:`Ranks` does, without communicating."""

    rank: int = 0
    count: int = 1
    sharded: FullySharded | None = None
    unit_of: Callable[[Count], Count] | None = None
    own_micro_batches: float = math.inf

    def open(self, undo: ExitStack, closing: ExitStack) -> None:
        pass

    def pad_to_longest(self, window: Iterable[T]) -> Iterable[T]:
        return window

    def begin(self, *, last: bool) -> None:
        pass

    def exchange(self, status: RankStatus) -> Totals | None:
        return None

    def add(self) -> None:
        pass

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        return [[] for _ in tensors], [[] for _ in tensors], tree

    def replays(self) -> bool:
        return True

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        pass

    def report_outside(self, error: BaseException) -> None:
        pass

    def explained(self, error: BaseException) -> BaseException:
        return error


ALONE = Alone()
"""It has no state, so all accumulators share it."""


class Ranks:
    """The coordinator of ranks that train together.

    When the window ends, they exchange statuses, and then add their sums.

    Args:
        group: the ranks.
        wrapper: how the modules are wrapped, and what therefore remains to be added.
        may_replay: whether the window can run again if memory runs out.

    Attributes:
        sharded: if given, passes communicate, so that all ranks run equally many.
        unit_of: chooses a sum's unit by its first count. For a process alone, the unit is that count.
        own_micro_batches: later ones repeat the last one, because another rank has more.
    """

    def __init__(
        self, group: RankGroup, wrapper: Replicated | FullySharded, *, may_replay: bool = False
    ) -> None:
        self.rank, self.count = group.rank, group.count
        self.sharded: FullySharded | None = wrapper if isinstance(wrapper, FullySharded) else None
        self.unit_of = wrapper.unit_of
        self.own_micro_batches: float = math.inf
        self._group, self._wrapper, self._may_replay = group, wrapper, may_replay
        self._exchange: StatusExchange | None = None  # the window's last one, which all ranks know of

    def open(self, undo: ExitStack, closing: ExitStack) -> None:
        """Begin a window: keep the modules' wrappers from synchronizing on their own.

        Args:
            undo: receives what a rollback undoes.
            closing: receives what the end of the window undoes, rolled back or not.
        """
        self._wrapper.open(undo, closing)

    # -- statuses ---------------------------------------------------------------------------------

    def exchange(self, status: RankStatus) -> Totals:
        """Exchange statuses at the end of a window; return the totals over all ranks.

        Raises:
            RankError: another rank has stopped. No rank then steps.
        """
        reached_by_pass = self._wrapper.finish_passes()
        self._exchange = self._agree(replace(status, reached_by_pass=reached_by_pass))
        return self._exchange.totals

    def _agree(self, status: RankStatus) -> StatusExchange:
        """Exchange statuses; raise RankError if the ranks cannot go on together."""
        exchange = StatusExchange.run(self._group, status)
        problem = exchange.problem(self.rank)
        if problem is not None:
            self._exchange = exchange
            raise ReplayError(exchange.stopped(self.rank)) if self.replays() else RankError(problem)
        return exchange

    def replays(self) -> bool:
        """Return whether all ranks run the window again: memory ran out on some, and nothing else failed."""
        return self._may_replay and self._exchange is not None and self._exchange.replays

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        """Report to the other ranks that this one stops in the window, so that they do not wait for it."""
        waiting = self.sharded is None or self.sharded.passed_last  # otherwise, ranks may be in a pass
        # An interrupt must not wait for the others.
        if waiting and self._exchange is None and not self._group.broken and isinstance(error, Exception):
            with suppress(RankError):
                self._exchange = self._report(error, "out of memory" if out_of_memory else "failed")

    def report_outside(self, error: BaseException) -> None:
        """Report an error between two runs of a window, where all ranks exchange statuses."""
        if not self._group.broken:
            self._report(error, "failed")

    def _report(self, error: BaseException, status: Status) -> StatusExchange:
        text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]
        return StatusExchange.run(self._group, RankStatus(status=status, error=text))

    def explained(self, error: BaseException) -> BaseException:
        """Return the error; if another rank missed a collective, return an error that names that rank."""
        in_pass = self.sharded is not None and is_lost(error)
        return lost(self._group, error) if in_pass else error

    # -- micro-batches and sums -------------------------------------------------------------------

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch."""
        self._wrapper.begin(last=last)

    def pad_to_longest(self, window: Iterable[T]) -> Iterable[T]:
        """Return the window. If every pass needs all ranks, extend it to match the rank with the longest window."""
        if self.sharded is None:
            return window
        micro_batches = window if isinstance(window, Sequence) else list(window)
        self.own_micro_batches = len(micro_batches)
        received = self._group.exchange({"micro_batches": len(micro_batches)})
        lengths = [int(message["micro_batches"]) for message in received]
        if any(lengths) and not all(lengths):
            raise RankError(
                f"micro_batches: rank {self._group.processes[lengths.index(0)]} has no micro-batch in this window, "
                f"but another rank has {max(lengths)}. Under fully_shard every pass waits for all ranks. Give that "
                "rank a micro-batch with count=0."
            )
        return _Repeated(micro_batches, max(lengths))

    def add(self) -> None:
        """Add the sums of all ranks in ``.grad``. Call this after :meth:`exchange`, with sums in its units."""
        if self._exchange is not None:
            self._wrapper.add(self._exchange)

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        """Return each tensor's rows on the ranks before and after this one, and the tree of the tensors."""
        rows = [(len(tensor), str(tensor.dtype), tuple(tensor.shape[1:])) for tensor in tensors]
        statuses = self._agree(RankStatus(phase="coupled", rows=rows or None)).statuses
        kinds = {
            process: ", ".join(f"{dtype} with rows of shape {shape}" for _, dtype, shape in status.rows)
            for process, status in zip(self._group.processes, statuses, strict=True)
            if status.rows is not None
        }
        first = next(iter(kinds), 0)
        for process, kind in kinds.items():
            if kind != kinds[first]:
                raise RankError(
                    f"update: the representations of rank {first} are {kinds[first]}; those of rank {process} are "
                    f"{kind}. They cannot be concatenated. Let encode return the same dtypes and row shapes on "
                    "every rank. No step was made."
                )
        if len(kinds) < self.count:
            tree = next((other for other in self._group.gather_objects(tree) if other is not None), None)
            tensors = tensors or [leaf.to(device) for leaf in tensors_in(tree)]
        gathered = [
            self._group.gather_rows(tensor, [int(s.rows[place][0]) if s.rows else 0 for s in statuses])
            for place, tensor in enumerate(tensors)
        ]
        return [of[: self.rank] for of in gathered], [of[self.rank + 1 :] for of in gathered], tree


Coordinator: TypeAlias = Alone | Ranks


class _Repeated(Sequence[T]):
    """A sequence, extended to a given length by repeating its last item. Items are made when they are read."""

    def __init__(self, items: Sequence[T], length: int) -> None:
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self._length:
            raise IndexError(place)
        return self._items[min(place, len(self._items) - 1)]
