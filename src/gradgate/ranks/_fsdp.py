"""Makes ``fully_shard`` (FSDP2) add the gradients of a window instead of averaging them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from gradgate.errors import GradientError, RankError, UpdateError
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._status_exchange import StatusExchange
from gradgate.tally import Count
from gradgate.torch_compat import fsdp_records, gathered_parameter, reset_pass


class FullySharded:
    """The policy for ``fully_shard``, which shards parameters and reduce-scatters their gradients.

    It makes ``fully_shard`` add gradients instead of averaging them, and chooses the micro-batches at which ranks
    communicate: at each one with ``every``, otherwise only at the last. Every forward and backward pass involves
    all ranks, so all run equally many micro-batches: a rank with fewer repeats its last one, with count 0.
    ``modules`` are those under ``fully_shard`` of this and other accumulators.
    """

    def __init__(
        self, group: RankGroup, parameters: Sequence[Tensor], modules: Sequence[Any], *, every: bool
    ) -> None:
        self._group, self._parameters = group, parameters
        modules = list({id(module): module for module in modules}.values())
        self._modules = modules
        self._owned = owned = set(map(id, parameters))
        self._mine = [m for m in modules if any(id(s.sharded_param) in owned for s in fsdp_records(m))]
        shards = [shard for module in modules for shard in fsdp_records(module)]
        self._shards = [shard for shard in shards if id(shard.sharded_param) in owned]
        self._others = [shard for shard in shards if id(shard.sharded_param) not in owned]
        sharded = {id(shard.sharded_param) for shard in self._shards}
        # Replicated, such as `ignored_params`; no pass reduces their gradients.
        self._unsharded = [parameter for parameter in parameters if id(parameter) not in sharded]
        self._every = every
        self._last = self.passed_last = False
        # One digit per parameter and backward pass: 1 if reached. Empty if ranks may differ.
        self._reached_by_pass = ""
        self.reached: set[int] = set()  # ids of owned parameters
        self._without: list[Tensor] = []  # owned parameters without a gradient when the window began

    def unit_of(self, count: Count) -> Count:
        """Return the unit of all ranks."""
        return self._group.unit  # fixed in advance: ranks add before they exchange statuses

    def open(self, undo: ExitStack, closing: ExitStack) -> None:
        """Have passes add gradients rather than average them, until the window closes."""
        if any(map(_unreduced, self._shards)):
            raise GradientError(
                "update: fully_shard holds gradients from before the window that no pass has reduce-scattered. "
                "Adding to them would mix two updates. Finish that accumulation first, with "
                "set_requires_gradient_sync(True) at its last backward pass."
            )
        undo.callback(self._discard)
        closing.callback(self._release)
        self._reshard()
        self._without = [shard.sharded_param for shard in self._shards if shard.sharded_param.grad is None]
        self._sum(True)

    def _release(self) -> None:
        self._sum(False)
        self.begin(last=True)

    def _sum(self, on: bool) -> None:
        """Have passes add gradients, with zeros for parameters that a rank did not reach; or average them again.

        By default, each rank sends only the gradients of parameters that it has reached, and ``fully_shard`` may
        then add gradients of different parameters.
        """
        for module in self._mine:
            module.set_gradient_divide_factor(1.0 if on else float(self._group.count))
            module.set_force_sum_reduction_for_comms(on)  # gloo has no reduction that multiplies
            if self.can_reduce_unused():
                module.set_reduce_scatter_unused_params(on, recurse=False)

    def can_reduce_unused(self) -> bool:
        """Return whether ranks can reduce-scatter parameters that only some ranks reached. torch 2.11 cannot."""
        return hasattr(self._mine[0], "set_reduce_scatter_unused_params")

    def add(self, exchange: StatusExchange) -> None:
        """Remove the zeros of parameters that no rank has reached; all-reduce gradients of unsharded parameters."""
        reached = {(status.filled, status.reached_by_pass) for status in exchange.statuses}
        if len(reached) > 1 and not self.can_reduce_unused():
            raise RankError(
                "update: ranks have reached different parameters in this window, and fully_shard of torch "
                f"{torch.__version__} added their gradients to one another. No step was made. Let every rank use "
                "every parameter, or use a torch version whose FSDPModule has set_reduce_scatter_unused_params."
            )
        kinds = dict(zip(map(id, self._parameters), exchange.filled, strict=True))
        for parameter in self._without:
            if not kinds[id(parameter)]:
                parameter.grad = None
        self._group.add_gradients(self._unsharded, [kinds[id(parameter)] for parameter in self._unsharded])
        (total,) = (tally.count for tally in exchange.totals.tallies.values())
        # Close to a rank's count in a window, so that sums are about as large as means.
        self._group.unit = 2.0 ** round(math.log2(max(total / self._group.count, 1)))

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch; choose whether its backward pass communicates."""
        self._last = last
        for module in self._mine:
            # Not `set_requires_all_reduce(last)`: torch adds partial sums of hybrid sharding by their place in a
            # buffer, which changes if parameters are frozen or unfrozen between micro-batches.
            module.set_requires_gradient_sync(last or self._every, recurse=False)

    def _reshard(self) -> None:
        """Free gathered parameters, because a step changes the shards but not these copies."""
        for module in self._mine:
            module.reshard()

    def finish_passes(self) -> str:
        """Make the shards ready for a step; return which parameters passes have reached, if ranks must not differ.

        Raises:
            UpdateError: the window's last micro-batch had no backward pass.
        """
        if any(map(_unreduced, self._shards)):
            raise UpdateError(
                "update: the window ended before its last backward pass, in which fully_shard adds gradients over "
                "ranks: the loop was left early, or the last micro-batch was skipped. No step was made. Shorten "
                "the window beforehand, pass count=0 for a skipped micro-batch, or use sync='every'."
            )
        self._reshard()
        return self._reached_by_pass

    def _discard(self) -> None:
        """Drop the gradients of a rolled-back window, and reset modules whose pass raised."""
        mine = {*map(id, self._mine)}
        # The root has no parameters of its own if all of its parts are sharded as well.
        for module in self._modules:
            if not mine.isdisjoint(map(id, module.modules())):
                reset_pass(module)
        for shard in filter(_unreduced, self._shards):
            _set_local(shard, None, None)

    @contextmanager
    def only_owned(self, leaves: Sequence[Tensor]) -> Iterator[None]:
        """Preserve the gradients of those leaves of a graph that the accumulator does not own.

        A backward pass through ``fully_shard`` cannot be restricted by ``inputs=``: its hooks would not run.
        """
        ours = self._owned.union(id(gathered_parameter(shard)) for shard in self._shards)
        others = [leaf for leaf in leaves if id(leaf) not in ours]
        others += [shard.sharded_param for shard in self._others]
        in_graph = set(map(id, leaves))
        reached = [id(gathered_parameter(shard)) in in_graph for shard in (*self._shards, *self._others)]
        self.reached.update(id(s.sharded_param) for s, yes in zip(self._shards, reached, strict=False) if yes)
        if self._every and not self.can_reduce_unused():  # ranks communicate in each pass, this one included
            self._reached_by_pass += "".join(map(str, map(int, reached)))
        before = [tensor.grad for tensor in others]
        held = [_local(shard) for shard in self._others]
        for tensor in others:
            tensor.grad = None  # autograd would add to it in place
        for shard in self._others:
            _set_local(shard, None, None)
        try:
            yield
            self.passed_last = self._last  # then all passes are over
        finally:
            for shard, gradients in zip(self._others, held, strict=True):
                _set_local(shard, *gradients)
            for tensor, gradient in zip(others, before, strict=True):
                tensor.grad = gradient

    def check_known(self, node: Any) -> None:
        """Raise RankError for a node of ``fully_shard`` whose module is in no accumulator's ``model=``."""
        group = getattr(node, "param_group", None)
        if group is None or not node.name().startswith("RegisterPostBackward"):
            return
        known = {id(shard) for shard in (*self._shards, *self._others)}
        if not known.issuperset(map(id, group.fsdp_params)):
            raise RankError(
                "backward: the loss runs through a module under fully_shard that is in no accumulator's model=, so "
                "it would receive gradients too. Pass that module as well: Accumulator(..., model=[mine, "
                "the_other])."
            )


def _local(shard: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return this rank's gradients that are not reduce-scattered yet."""
    gathered = gathered_parameter(shard)
    return None if gathered is None else gathered.grad, shard.unsharded_accumulated_grad


def _unreduced(shard: Any) -> bool:
    return any(gradient is not None for gradient in _local(shard))


@torch.no_grad()
def _set_local(shard: Any, gradient: Tensor | None, accumulated: Tensor | None) -> None:
    gathered = gathered_parameter(shard)
    if gathered is not None:
        gathered.grad = gradient
    if shard.unsharded_accumulated_grad is not accumulated:  # in torch 2.15, an alias of `gathered.grad`
        shard.unsharded_accumulated_grad = accumulated
