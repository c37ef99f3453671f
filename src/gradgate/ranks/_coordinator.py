"""Coordinates an update over several ranks. At its end, the ranks exchange statuses and add their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gradgate.errors import RankError
from gradgate.pytree import tensors_in
from gradgate.ranks._ddp import REPLICATED, hold_wrapper, release_wrapper, wrappers_in
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._single_process import Coordinator, Count, Gathered
from gradgate.ranks._status_exchange import RankStatus, Status, StatusExchange, Totals
from gradgate.tally import power_of_two
from gradgate.torch_compat import (
    compiled_in_place,
    forget_running_wrapper,
    in_join,
    reset_reducer,
    running_wrapper,
    sparse_tensor,
)

Sync: TypeAlias = Literal["last", "every"]
"""When gradients are all-reduced."""


class ReplayError(RankError):
    """Memory ran out on another rank, so all ranks rerun the window."""


class RankCoordinator(Coordinator):
    """The coordinator of several ranks that train together.

    By default, DistributedDataParallel averages gradients at every backward pass, although counts may differ
    between ranks. It also broadcasts buffers before every forward pass, so that ranks wait for a rank with fewer
    micro-batches. The coordinator suspends both. When the window ends, its sum is all-reduced once, and buffers are
    broadcast from rank 0, as in DDP.

    Args:
        ranks: the ranks that train together.
        parameters: the parameters that the accumulator owns.
        roots: the modules of ``model=``.
        modules: the roots and all their submodules.
        neighbours: the modules of other accumulators, whose wrappers may run in this accumulator's windows.
        may_replay: whether the window can run again if memory runs out.
    """

    def __init__(
        self,
        ranks: RankGroup,
        parameters: Sequence[Tensor],
        roots: Sequence[nn.Module] = (),
        modules: Sequence[nn.Module] = (),
        neighbours: Sequence[nn.Module] = (),
        *,
        may_replay: bool = False,
    ) -> None:
        self.ranks = ranks
        self.rank, self.count = ranks.rank, ranks.count
        self._may_replay = may_replay
        self._exchange: StatusExchange | None = None
        self._parameters = parameters
        self._roots = roots
        self._wrappers = wrappers_in(modules)
        self._known = wrappers_in([*self._wrappers, *neighbours])
        self._held: list[DistributedDataParallel] = []
        self._handles: list[RemovableHandle] = []

    # -- wrappers ---------------------------------------------------------------------------------

    def hold(self) -> None:
        # An unknown wrapper may be in its forward pass, as Lightning's is in `training_step`.
        self._check_wrapper(self._roots[0] if self._roots else None)
        if any(map(in_join, self._wrappers)):
            raise RankError(
                "update: DistributedDataParallel.join() is active, so ranks wait for each other in each forward "
                "pass, although they may have different numbers of micro-batches. Remove join(): a rank without "
                "data calls update.micro_batches([]). After an earlier join(), call model.join(enable=False)."
            )
        for wrapper in self._known:
            hold_wrapper(wrapper)
            self._held.append(wrapper)
        for wrapper in self._wrappers:
            # A forward pass before the window, such as an evaluation with gradients enabled, has prepared the
            # reducer to average the next backward pass.
            reset_reducer(wrapper)
        for module in self._roots:
            inner = module.module if isinstance(module, DistributedDataParallel) else module
            if not compiled_in_place(inner):  # a hook would be compiled with it
                self._handles.append(inner.register_forward_pre_hook(self._check_wrapper))

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        while self._held:
            release_wrapper(self._held.pop())

    def _check_wrapper(self, module: nn.Module | None = None, inputs: tuple[Any, ...] = ()) -> None:
        active = running_wrapper()
        if active is not None and not any(active is wrapper for wrapper in self._known):
            if isinstance(active.module, nn.ParameterList):  # what replicate makes
                forget_running_wrapper()
                raise RankError(REPLICATED)
            raise RankError(
                f"update: {type(module or active.module).__name__} runs inside a DistributedDataParallel that this "
                "accumulator does not know, and that averages gradients at each backward pass. Pass the wrapper: "
                "Accumulator(..., model=wrapper). If you wrapped the model again: accumulator.model = wrapper."
            )

    # -- statuses ---------------------------------------------------------------------------------

    def _exchange_statuses(self, status: RankStatus) -> StatusExchange:
        exchange = StatusExchange.run(self.ranks, status)
        stopped = exchange.stopped(self.rank)
        if stopped is not None:
            self._exchange = exchange
            if self.replays():
                raise ReplayError(stopped)
            raise RankError(f"update: {stopped} No rank made a step. Fix the error on that rank first.")
        if exchange.differ_in_coupled:
            self._exchange = exchange
            raise RankError(exchange.differ_in_coupled)
        return exchange

    def replays(self) -> bool:
        return self._may_replay and self._exchange is not None and self._exchange.replays

    def report(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        if self._exchange is not None or self.ranks.broken or not isinstance(error, Exception):
            return  # an interrupt must not wait for the others
        with suppress(RankError):
            self._exchange = self._report(error, "out of memory" if out_of_memory else "failed")

    def report_outside(self, error: BaseException) -> None:
        if not self.ranks.broken:
            self._report(error, "failed")

    def _report(self, error: BaseException, status: Status) -> StatusExchange:
        text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]
        return StatusExchange.run(self.ranks, RankStatus(status=status, error=text))

    # -- sums -------------------------------------------------------------------------------------

    def unit_of(self, count: Count) -> Count:
        """Return a power of two, so that ranks convert between their units without rounding."""
        return power_of_two(count)

    def exchange(self, status: Callable[[], RankStatus]) -> Totals | None:
        self._exchange = exchange = self._exchange_statuses(status())
        if exchange.differ_in_trained:
            raise RankError(exchange.differ_in_trained)
        self.tallies = exchange.tallies
        return Totals(exchange.tallies, exchange.units)

    def add(self) -> None:
        if self._exchange is not None:
            self._add_ranks(self._exchange)

    def _add_ranks(self, exchange: StatusExchange) -> None:
        self._all_reduce(self._parameters, exchange.filled)
        for wrapper in self._wrappers:
            if wrapper.broadcast_buffers:
                self.ranks.broadcast(list(wrapper.modules_buffers))

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

    def firsts(self, first: Callable[[], tuple[float, float] | None]) -> list[tuple[float, float]]:
        statuses = () if self._exchange is None else self._exchange.statuses
        return [status.first for status in statuses if status.first is not None]

    # -- other values -----------------------------------------------------------------------------

    def gather_objects(self, mine: Any) -> list[Any]:
        return self.ranks.gather_objects(mine)

    def gather_rows(self, tensors: list[Tensor], tree: Any, device: torch.device) -> Gathered:
        mine = [(len(each), str(each.dtype), tuple(each.shape[1:])) for each in tensors] if tensors else None
        statuses = self._exchange_statuses(RankStatus(phase="coupled", rows=mine)).statuses
        kinds = {
            rank: ", ".join(f"{dtype} with rows of shape {shape}" for _, dtype, shape in status.rows)
            for rank, status in enumerate(statuses)
            if status.rows is not None
        }
        first = next(iter(kinds), 0)
        for rank, kind in kinds.items():
            if kind != kinds[first]:
                raise RankError(
                    f"update: the representations of rank {self.ranks.processes[first]} are {kinds[first]}; "
                    f"those of rank {self.ranks.processes[rank]} are {kind}. They cannot be concatenated. Let "
                    "encode return the same dtypes and row shapes on every rank. No step was made."
                )
        if len(kinds) < self.count:
            tree = next((each for each in self.gather_objects(tree) if each is not None), None)
            tensors = tensors or [leaf.to(device) for leaf in tensors_in(tree)]
        gathered = [
            self.ranks.gather_rows(each, [int(s.rows[place][0]) if s.rows else 0 for s in statuses])
            for place, each in enumerate(tensors)
        ]
        return [of[: self.rank] for of in gathered], [of[self.rank + 1 :] for of in gathered], tree


def _empty(parameter: Tensor, *, sparse: bool) -> Tensor:
    dtype = parameter.grad_dtype or parameter.dtype
    if not sparse:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    # Sparse in rows, as embeddings are.
    indices = torch.empty(1, 0, dtype=torch.long, device=parameter.device)
    values = torch.empty(0, *parameter.shape[1:], dtype=dtype, device=parameter.device)
    return sparse_tensor(indices, values, parameter.shape)
