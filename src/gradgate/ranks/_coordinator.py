"""Coordinates an update over several ranks, which exchange statuses and add their sums at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradgate.errors import RankError
from gradgate.ranks._ddp import Engine
from gradgate.ranks._fsdp import ShardedEngine
from gradgate.ranks._gather_rows import Gathered, gather_rows
from gradgate.ranks._process_group import is_lost, lost
from gradgate.ranks._single_process import SingleProcess, WindowSums
from gradgate.ranks._status_exchange import RankStatus, StatusExchange
from gradgate.torch_compat import sparse_tensor

T = TypeVar("T")


class ReplayError(RankError):
    """Memory ran out on another rank, so all ranks rerun the window."""


class RankCoordinator(SingleProcess):
    """The coordinator of several ranks that train together.

    Args:
        engine: controls the wrappers around the modules.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ranks = engine.ranks
        self.rank, self.count = engine.ranks.rank, engine.ranks.count
        self.sharded = engine if isinstance(engine, ShardedEngine) else None
        self._exchange: StatusExchange | None = None
        self._may_replay = False

    def start(self, *, may_replay: bool) -> None:
        self._may_replay = may_replay
        self._exchange = self.tallies = None
        self.all_reduced = False
        self.own_micro_batches = math.inf
        # A pass that may run again must not communicate.
        self.overlaps = self.engine.buckets is not None and not may_replay

    def hold(self) -> None:
        self.engine.hold()

    def even(self, window: Iterable[T]) -> Iterable[T]:
        if self.sharded is None:
            return window
        own = window if isinstance(window, Sequence) else list(window)
        self.own_micro_batches = len(own)
        return self.sharded.even(own)

    def begin(self, *, last: bool) -> None:
        self.engine.begin(last=last)

    @contextmanager
    def overlapping(self, sums: WindowSums, name: str, unit: float | None) -> Iterator[None]:
        """All-reduce gradients while the block runs the last backward pass, if all ranks are about to run it.

        Args:
            sums: the sums of the window. It has a single loss, whose sum is in ``.grad``.
            name: the name of the loss.
            unit: the unit of its sum; None if the sum is empty.

        Raises:
            RankError: another rank has stopped in this window, or stops in this pass, so no rank steps.
        """
        units = {} if unit is None else {name: unit}
        exchange = self._exchange_statuses(RankStatus(phase="last", counts={name: 0}, units=units))
        buckets = self.engine.buckets
        if buckets is None or not exchange.all_at_last:
            yield
            return
        common = exchange.units[name]
        buckets.start(1.0 if unit is None else unit / common)
        try:
            yield
        except BaseException:
            with suppress(RankError):
                buckets.finish(failed=True)
            raise
        buckets.finish()
        sums.all_reduced(name, common)
        self.all_reduced = True

    def _exchange_statuses(self, status: RankStatus) -> StatusExchange:
        exchange = StatusExchange.run(self.ranks, status)
        stopped = exchange.stopped(self.rank)
        if stopped is not None:
            self._exchange = exchange
            if self.replays(self._may_replay):
                raise ReplayError(stopped)
            raise RankError(f"update: {stopped} No rank made a step. Fix the error on that rank first.")
        if exchange.differ_in_coupled:
            self._exchange = exchange
            raise RankError(exchange.differ_in_coupled)
        return exchange

    def combine(self, sums: WindowSums) -> float | None:
        sums.check()
        if self.sharded is not None:
            self.sharded.check_reduced()
        status = sums.status()
        if self.sharded is not None:
            status = replace(status, reached_by_pass=self.sharded.reached_by_pass)
        exchange = self._exchange_statuses(status)
        while exchange.incomplete:
            exchange = self._exchange_statuses(status)
        self._exchange = exchange
        if exchange.differ_in_trained:
            raise RankError(exchange.differ_in_trained)
        self.tallies = exchange.tallies
        totals = {name: tally.count for name, tally in self.tallies.items()}
        if not any(totals.values()):
            return None
        factor: float | None = sums.combine(totals, exchange.units)
        if self.sharded is not None:
            self.sharded.keep_reached(exchange.statuses, sums.parameters)
            filled = dict(zip(map(id, sums.parameters), exchange.filled, strict=True))
            unsharded = self.sharded.unsharded
            self._all_reduce(unsharded, [filled[id(parameter)] for parameter in unsharded])
            (total,) = totals.values()
            # Close to a rank's count in a window, so that sums are about as large as means.
            self.sharded.unit = 2.0 ** round(math.log2(max(total / self.count, 1)))
            return factor
        if not self.all_reduced:
            self._all_reduce(sums.parameters, exchange.filled)
        self.engine.broadcast_buffers()
        return factor

    def _all_reduce(self, parameters: Sequence[Tensor], filled: Sequence[int]) -> None:
        for parameter, kind in zip(parameters, filled, strict=True):
            if kind and parameter.grad is None:
                parameter.grad = _empty(parameter, sparse=kind == 2)
            elif kind == 1 and parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.ranks.all_reduce([gradient for gradient in gradients if not gradient.is_sparse])
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = self.ranks.all_reduce_sparse(parameter.grad)

    def firsts(self, sums: WindowSums) -> list[tuple[float, float]]:
        statuses = () if self._exchange is None else self._exchange.statuses
        return [status.first for status in statuses if status.first is not None]

    def gather_batches(self, batch: Any) -> list[Any]:
        return self.ranks.gather_batches(batch)

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        return gather_rows(self.ranks, self._exchange_statuses, tensors, tree, device)

    def replays(self, may_replay: bool) -> bool:
        return may_replay and self._exchange is not None and self._exchange.replays

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        """Report an error once in a window, and only where the other ranks exchange statuses."""
        if self._exchange is not None or self.ranks.broken:
            return
        in_pass = self.sharded is not None and not self.sharded.passed_last
        if in_pass or not isinstance(error, Exception):
            return  # the others may be in the middle of a pass, and an interrupt must not wait for them
        with suppress(RankError):
            self._exchange = self._report(error, out_of_memory=out_of_memory)

    def report_outside(self, error: BaseException) -> None:
        if not self.ranks.broken:
            self._report(error, out_of_memory=False)

    def _report(self, error: BaseException, *, out_of_memory: bool) -> StatusExchange:
        text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]
        status = RankStatus(status="out of memory" if out_of_memory else "failed", error=text)
        return StatusExchange.run(self.ranks, status)

    def explained(self, error: BaseException) -> BaseException:
        return error if self.sharded is None or not is_lost(error) else lost(self.ranks, error)

    def discard(self) -> None:
        self.engine.discard()

    def release(self) -> None:
        self.engine.release()


def _empty(parameter: Tensor, *, sparse: bool) -> Tensor:
    dtype = parameter.grad_dtype or parameter.dtype
    if not sparse:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    indices = torch.empty(
        1, 0, dtype=torch.long, device=parameter.device
    )  # sparse in rows, as embeddings are
    values = torch.empty(0, *parameter.shape[1:], dtype=dtype, device=parameter.device)
    return sparse_tensor(indices, values, parameter.shape)
