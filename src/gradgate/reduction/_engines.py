"""PyTorch's engines that synchronise gradients by themselves: held back while a window is added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradgate.errors import RankError
from gradgate.reduction._buckets import Buckets
from gradgate.reduction._ranks import Ranks

T = TypeVar("T")

Sync: TypeAlias = Literal["last", "every", "overlap"]
"""When gradients go over ranks."""


class Engine:
    """The wrappers around an accumulator's modules, and the ranks that they train on.

    DistributedDataParallel would average gradients at every backward pass, whatever each rank's count, and
    broadcast buffers before every forward pass, so that ranks with fewer micro-batches would be waited for. Held
    back, it does neither; the window's sum goes over ranks once, at its end, and buffers follow rank 0, as in DDP.
    """

    sharded = False
    others: Sequence[Tensor] = ()

    def __init__(
        self,
        ranks: Ranks,
        wrappers: Sequence[DistributedDataParallel] = (),
        buckets: Buckets | None = None,
    ) -> None:
        self.ranks = ranks
        self.buckets = buckets
        """What sends gradients during the last backward pass, if that is asked for."""
        self._wrappers = wrappers
        self._were: list[tuple[bool, bool]] = []

    def hold(self) -> None:
        """Let no wrapper communicate."""
        self._were = [
            (one.require_backward_grad_sync, one.require_forward_param_sync) for one in self._wrappers
        ]
        for one in self._wrappers:
            one.require_backward_grad_sync = one.require_forward_param_sync = False

    def release(self) -> None:
        """Let wrappers do what they did before."""
        for one, (gradients, buffers) in zip(self._wrappers, self._were, strict=False):
            one.require_backward_grad_sync, one.require_forward_param_sync = gradients, buffers
        self._were = []

    def begin(self, *, last: bool) -> None:
        """Take note of a micro-batch that comes. Nothing is to be done: the sum goes over ranks at the end."""

    def spread_buffers(self) -> None:
        """Give all ranks the first one's buffers, where the wrapper is made to."""
        for one in self._wrappers:
            if one.broadcast_buffers:
                self.ranks.spread(list(one.modules_buffers))


class Sharded(Engine):
    """``fully_shard`` (FSDP2), which cuts parameters into parts and adds gradients into them by itself.

    It is told to add and not to average, and when. Its forward and backward passes wait for all ranks, so that
    these need the same number of micro-batches: ranks with fewer repeat their last one, which then counts nothing.

    Args:
        ranks: all that hold a part.
        modules: wrapped by ``fully_shard``.
        others: parameters of other wrapped modules, into which a backward pass may leak.
        every: synchronise at each micro-batch and not at the last one only: less memory, more communication.
    """

    sharded = True

    def __init__(
        self, ranks: Ranks, modules: Sequence[Any], others: Sequence[Tensor], *, every: bool
    ) -> None:
        super().__init__(ranks)
        self._modules = modules
        self.others = others
        self._every = every
        self.unit = 1.0
        """What the sums of the next window are held in. The same on all ranks: they add up before they meet."""

    def hold(self) -> None:
        """Let the modules add gradients up, and not average them."""
        for one in self._modules:
            one.set_gradient_divide_factor(1.0)
            one.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that multiplies

    def release(self) -> None:
        """Let them average again, as they do by themselves."""
        for one in self._modules:
            one.set_gradient_divide_factor(float(self.ranks.count))
            one.set_force_sum_reduction_for_comms(False)
        self.begin(last=True)

    def begin(self, *, last: bool) -> None:
        """Say whether the micro-batch that comes is the last one, which synchronises."""
        for one in self._modules:
            one.set_requires_gradient_sync(last or self._every, recurse=False)

    def even(self, micro_batches: Sequence[T]) -> Sequence[T]:
        """Return as many micro-batches as the rank with the most has, the last one repeated.

        Raises:
            RankError: a rank has none, and nothing to repeat.
        """
        numbers = [
            int(one["micro_batches"]) for one in self.ranks.tell({"micro_batches": len(micro_batches)})
        ]
        empty = [rank for rank, number in enumerate(numbers) if not number]
        if empty and any(numbers):
            raise RankError(
                f"micro_batches: rank {empty[0]} has no micro-batch in this window, and others {max(numbers)}. "
                "Under fully_shard every pass waits for all ranks. Give it one, with count=0."
            )
        return _Repeated(micro_batches, max(numbers))


class _Repeated(Sequence[T]):
    """A sequence whose last item comes again until it is long enough. Items are made when they are asked for."""

    def __init__(self, items: Sequence[T], length: int) -> None:
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self._length:
            raise IndexError(place)
        return self._items[min(place, len(self._items) - 1)]


def engine_of(parameters: Sequence[Tensor], modules: Iterable[nn.Module], ranks: Ranks, sync: Sync) -> Engine:
    """Find out which engine holds the parameters.

    Args:
        parameters: those of an accumulator.
        modules: all that are alive.
        ranks: who trains together.
        sync: when gradients go over ranks: "last" or "every" micro-batch where they are sharded; "overlap" sends
            those of others during the last backward pass.

    Raises:
        RankError: it is one that cannot be held.
    """
    ours = {id(parameter) for parameter in parameters}
    sharded = [module for module in modules if _is_sharded(module)]
    mine = [one for one in sharded if any(id(parameter) in ours for parameter in one.parameters())]
    if mine:
        others = {id(p): p for one in sharded for p in one.parameters() if id(p) not in ours}
        return Sharded(ranks, mine, list(others.values()), every=sync == "every")
    if any(hasattr(parameter, "full_tensor") for parameter in parameters):
        raise RankError(
            "update: parameters lie in parts on several ranks, but not by fully_shard, whose sums are known. Use "
            "fully_shard, DistributedDataParallel, or parameters without a wrapper."
        )
    wrappers = []
    for module in modules:
        held = any(id(parameter) in ours for parameter in module.parameters())
        if held and isinstance(module, DistributedDataParallel):
            if module.static_graph:
                raise RankError(
                    "update: DistributedDataParallel was made with static_graph=True and cannot be held back in a "
                    "window. Leave static_graph out."
                )
            wrappers.append(module)
        elif held and type(module).__name__ == "FullyShardedDataParallel":
            raise RankError(
                "update: FullyShardedDataParallel (FSDP1) is not supported. Use fully_shard or DDP."
            )
    return Engine(ranks, wrappers, Buckets(ranks, parameters) if sync == "overlap" else None)


def _is_sharded(module: Any) -> bool:
    """Say whether ``fully_shard`` has wrapped a module. By name, for the import of its own takes half a second."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
