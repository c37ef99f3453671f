"""PyTorch's engines that synchronise gradients by themselves: held back while a window is added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradgate.errors import RankError
from gradgate.reduction._ranks import Ranks


class Engine:
    """The wrappers around an accumulator's modules, and the ranks that they train on.

    DistributedDataParallel would average gradients at every backward pass, whatever each rank's count, and
    broadcast buffers before every forward pass, so that ranks with fewer micro-batches would be waited for. Held
    back, it does neither; the window's sum goes over ranks once, at its end, and buffers follow rank 0, as in DDP.
    """

    def __init__(self, ranks: Ranks, wrappers: Sequence[DistributedDataParallel] = ()) -> None:
        self.ranks = ranks
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

    def spread_buffers(self) -> None:
        """Give all ranks the first one's buffers, where the wrapper is made to."""
        for one in self._wrappers:
            if one.broadcast_buffers:
                self.ranks.spread(list(one.modules_buffers))


def engine_of(parameters: Sequence[Tensor], modules: Iterable[nn.Module], ranks: Ranks) -> Engine:
    """Find out which engine holds the parameters.

    Raises:
        RankError: they lie in parts on several ranks.
    """
    ours = {id(parameter) for parameter in parameters}
    if any(hasattr(parameter, "full_tensor") for parameter in parameters):
        raise RankError(
            "update: parameters lie in parts on several ranks (FSDP), which this version cannot add up. Use "
            "DistributedDataParallel, or parameters without a wrapper."
        )
    wrappers = []
    for module in modules:
        mine = any(id(parameter) in ours for parameter in module.parameters())
        if mine and isinstance(module, DistributedDataParallel):
            wrappers.append(module)
        elif mine and type(module).__name__ == "FullyShardedDataParallel":
            raise RankError(
                "update: FullyShardedDataParallel (FSDP1) is not supported. Use fully_shard or DDP."
            )
    return Engine(ranks, wrappers)
