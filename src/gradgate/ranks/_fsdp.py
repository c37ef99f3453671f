"""Makes ``fully_shard`` (FSDP2) add the gradients of a window instead of averaging them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradgate.errors import GradientError, RankError, UpdateError
from gradgate.ranks._ddp import Engine
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._status_exchange import RankStatus
from gradgate.torch_compat import fsdp_records, gathered_parameter

T = TypeVar("T")


class ShardedEngine(Engine):
    """The engine for ``fully_shard``, which shards parameters and reduce-scatters their gradients.

    The engine makes it add gradients instead of averaging them, and chooses the micro-batches at which it
    communicates. Every forward and backward pass involves all ranks, so all ranks run equally many micro-batches: a
    rank with fewer repeats its last one, with count 0.

    Args:
        ranks: the ranks that hold a shard.
        parameters: the parameters that the accumulator owns.
        modules: the modules under ``fully_shard`` of this and other accumulators.
        every: synchronize at each micro-batch, not only at the last. Needs less memory and more communication.
    """

    def __init__(
        self, ranks: RankGroup, parameters: Sequence[Tensor], modules: Sequence[Any], *, every: bool
    ) -> None:
        super().__init__(ranks)
        owned = {id(parameter) for parameter in parameters}
        self._mine: list[Any] = [
            m for m in modules if any(id(p.sharded_param) in owned for p in fsdp_records(m))
        ]
        self._shards = [shard for module in modules for shard in fsdp_records(module)]
        self._owned = owned
        self.unsharded = [p for p in parameters if id(p) not in {id(s.sharded_param) for s in self._shards}]
        """Owned parameters that are replicated, such as ``ignored_params``; nothing reduces their gradients."""
        self._every = every
        self._last = False
        self.passed_last = False
        """Whether this rank has run the window's last backward pass, so that all passes are over."""
        self.reached_by_pass = ""
        """One digit per parameter and backward pass: 1 if reached. Empty if ranks may differ."""
        self.reached: set[int] = set()
        """The ids of the owned parameters that this rank has reached in the window."""
        self._without: list[Tensor] = []  # owned parameters without a gradient when the window began
        self.unit = 1.0
        """The unit of the next window's sums. Fixed in advance: ranks add before they exchange statuses."""

    def hold(self) -> None:
        """Make the modules add gradients instead of averaging them."""
        self._reshard()
        if self._unreduced():
            raise GradientError(
                "update: fully_shard holds gradients from before the window that no pass has reduce-scattered. "
                "Adding to them would mix two updates. Finish that accumulation first, with "
                "set_requires_gradient_sync(True) at its last backward pass."
            )
        owned = [shard.sharded_param for shard in self._shards if id(shard.sharded_param) in self._owned]
        self._without = [parameter for parameter in owned if parameter.grad is None]
        self.reached.clear()
        self.reached_by_pass = ""
        self._last = self.passed_last = False
        self._reduce_unused(True)
        for module in self._mine:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that multiplies

    def release(self) -> None:
        """Make the modules average gradients again, which is their default."""
        for module in self._mine:
            module.set_gradient_divide_factor(float(self.ranks.count))
            module.set_force_sum_reduction_for_comms(False)
        self._reduce_unused(False)
        self.begin(last=True)

    def _reduce_unused(self, on: bool) -> None:
        """Have all ranks reduce-scatter the same parameters, with zeros for parameters that a rank did not reach.

        By default, each rank sends only the gradients of parameters that it has reached, and ``fully_shard`` may
        then add gradients of different parameters.
        """
        if self.can_reduce_unused():
            for module in self._mine:
                module.set_reduce_scatter_unused_params(on, recurse=False)

    def can_reduce_unused(self) -> bool:
        """Return whether ranks can reduce-scatter parameters that only some ranks reached. torch 2.11 cannot."""
        return hasattr(self._mine[0], "set_reduce_scatter_unused_params")

    def keep_reached(self, statuses: Sequence[RankStatus], parameters: Sequence[Tensor]) -> None:
        """Remove the zeros of parameters that no rank has reached.

        Args:
            statuses: the statuses of all ranks, which tell what each rank has reached.
            parameters: the owned parameters.

        Raises:
            RankError: only some ranks have reached a parameter, and this torch cannot send zeros from the others.
        """
        filled = [status.filled for status in statuses]
        differ = len(set(filled)) > 1 or len({status.reached_by_pass for status in statuses}) > 1
        if differ and not self.can_reduce_unused():
            raise RankError(
                "update: ranks have reached different parameters in this window, and fully_shard of torch "
                f"{torch.__version__} added their gradients to one another. No step was made. Let every rank use "
                "every parameter, or use a torch version whose FSDPModule has set_reduce_scatter_unused_params."
            )
        unreached = {
            id(p)
            for p, digits in zip(parameters, zip(*filled, strict=True), strict=True)
            if "1" not in digits
        }
        for parameter in self._without:
            if id(parameter) in unreached:
                parameter.grad = None

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch. The last one synchronizes."""
        self._last = last
        for module in self._mine:
            module.set_requires_gradient_sync(last or self._every, recurse=False)

    def _reshard(self) -> None:
        """Free gathered parameters, because a step changes the shards but not these copies."""
        for module in self._mine:
            module.reshard()

    def check_reduced(self) -> None:
        """Make the shards ready for a step.

        Raises:
            UpdateError: the window's last micro-batch, which synchronizes, had no backward pass.
        """
        if self._unreduced():
            raise UpdateError(
                "update: the window ended before its last backward pass, in which fully_shard adds gradients over "
                "ranks: the loop was left early, or the last micro-batch was skipped. No step was made. Shorten "
                "the window beforehand, pass count=0 for a skipped micro-batch, or use sync='every'."
            )
        self._reshard()

    def _unreduced(self) -> list[Any]:
        """Return the owned parameters with gradients that are not reduce-scattered yet."""
        return [
            shard
            for shard in self._shards
            if id(shard.sharded_param) in self._owned and any(g is not None for g in _local(shard))
        ]

    def discard(self) -> None:
        """Drop the gradients of a rolled-back window, and reset modules whose pass raised."""
        for module in self._mine:
            if all(gathered_parameter(shard) is None for shard in fsdp_records(module)):
                continue  # it never ran
            # torch raises if the module is not the root, or if another rank has died and no pass can run any more.
            with suppress(RuntimeError):
                if hasattr(module, "reset_iter_state"):  # torch 2.11 lacks it and needs no reset
                    module.reset_iter_state()
        for shard in self._unreduced():
            _set_local(shard, None, None)

    @contextmanager
    def only_owned(self, leaves: Sequence[Tensor]) -> Iterator[None]:
        """Preserve the gradients of parameters that the accumulator does not own.

        A backward pass through ``fully_shard`` cannot be restricted by ``inputs=``, because its hooks would not
        run.

        Args:
            leaves: the leaves of the graph.
        """
        ours = self._owned | {
            id(gathered_parameter(s)) for s in self._shards if id(s.sharded_param) in self._owned
        }
        others = [leaf for leaf in leaves if id(leaf) not in ours]
        gathered = {id(leaf) for leaf in leaves}
        found = [id(gathered_parameter(shard)) in gathered for shard in self._shards]
        self.reached |= {
            id(shard.sharded_param) for shard, yes in zip(self._shards, found, strict=True) if yes
        }
        if self._every and not self.can_reduce_unused():  # ranks communicate in each pass, this one included
            self.reached_by_pass += "".join(str(int(yes)) for yes in found)
        theirs = [shard for shard in self._shards if id(shard.sharded_param) not in self._owned]
        others += [shard.sharded_param for shard in theirs]
        before = [tensor.grad for tensor in others]
        held = [_local(shard) for shard in theirs]
        for tensor in others:
            tensor.grad = None  # autograd would add to it in place
        for shard in theirs:
            _set_local(shard, None, None)
        try:
            yield
            self.passed_last = self._last
        finally:
            for shard, gradients in zip(theirs, held, strict=True):
                _set_local(shard, *gradients)
            for tensor, gradient in zip(others, before, strict=True):
                tensor.grad = gradient

    def check_known(self, node: Any) -> None:
        """Raise RankError for a node of ``fully_shard`` whose module is in no accumulator's ``model=``."""
        group = getattr(node, "param_group", None)
        if group is None or not node.name().startswith("RegisterPostBackward"):
            return
        known = {id(shard) for shard in self._shards}
        if not all(id(shard) in known for shard in group.fsdp_params):
            raise RankError(
                "backward: the loss runs through a module under fully_shard that is in no accumulator's model=, so "
                "it would receive gradients too. Pass that module as well: Accumulator(..., model=[mine, "
                "the_other])."
            )

    def even(self, micro_batches: Sequence[T]) -> Sequence[T]:
        """Repeat the last micro-batch until this rank has as many as the rank with the most.

        Raises:
            RankError: a rank has no micro-batch to repeat.
        """
        received = self.ranks.exchange({"micro_batches": len(micro_batches)})
        lengths = [int(message["micro_batches"]) for message in received]
        empty = [rank for rank, length in enumerate(lengths) if not length]
        if empty and any(lengths):
            raise RankError(
                f"micro_batches: rank {empty[0]} has no micro-batch in this window, another rank has "
                f"{max(lengths)}. Under fully_shard every pass waits for all ranks. Give that rank a micro-batch "
                "with count=0."
            )
        return _Repeated(micro_batches, max(lengths))


class _Repeated(Sequence[T]):
    """A sequence whose last item repeats up to a length. Items are made when they are read."""

    def __init__(self, items: Sequence[T], length: int) -> None:
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self._length:
            raise IndexError(place)
        return self._items[min(place, len(self._items) - 1)]


def is_sharded(module: Any) -> bool:
    """Return whether ``fully_shard`` has wrapped a module. Importing its class would take half a second."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def _local(shard: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return this rank's gradients that are not reduce-scattered yet."""
    gathered = gathered_parameter(shard)
    return None if gathered is None else gathered.grad, shard.unsharded_accumulated_grad


@torch.no_grad()
def _set_local(shard: Any, gradient: Tensor | None, accumulated: Tensor | None) -> None:
    gathered = gathered_parameter(shard)
    if gathered is not None:
        gathered.grad = gradient
    if shard.unsharded_accumulated_grad is not accumulated:  # in torch 2.15, an alias of `gathered.grad`
        shard.unsharded_accumulated_grad = accumulated
