"""All-reduces gradients while the last backward pass of a window still runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gradgate.errors import RankError, UpdateError
from gradgate.ranks._process_group import RankGroup, bucketed


class Buckets:
    """The gradients of some parameters, in groups that are all-reduced as soon as they are complete.

    All ranks send the same groups in the same order: the last parameters first, as backward passes reach them. A
    group that is complete early waits for the groups before it. Each group carries flags: which gradients a rank
    has filled, and whether the rank failed, so that no rank waits for a stopped rank.
    """

    def __init__(self, ranks: RankGroup, parameters: Sequence[Tensor]) -> None:
        self._ranks = ranks
        self._groups = bucketed(
            list(reversed(parameters)), lambda parameter: parameter.grad_dtype or parameter.dtype
        )
        self._ready: set[int] = set()
        self._sent: list[tuple[Tensor, Any]] = []
        self._hooks: list[RemovableHandle] = []
        self._factor = 1.0

    def start(self, factor: float) -> None:
        """Send each group, multiplied by ``factor``, as soon as a backward pass completes it."""
        self._factor, self._sent, self._ready = factor, [], set()
        parameters = [parameter for group in self._groups for parameter in group if parameter.requires_grad]
        self._hooks = [each.register_post_accumulate_grad_hook(self._filled) for each in parameters]

    def _filled(self, parameter: Tensor) -> None:
        self._ready.add(id(parameter))
        while len(self._sent) < len(self._groups) and all(
            id(each) in self._ready or not each.requires_grad for each in self._groups[len(self._sent)]
        ):
            self._send(failed=False)

    def _send(self, *, failed: bool) -> None:
        group = self._groups[len(self._sent)]
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in group):
            raise UpdateError("update: sync='overlap' cannot send sparse gradients. Use sync='last'.")
        first = group[0]
        dtype = first.grad_dtype or first.dtype
        parts = [
            torch.zeros(parameter.numel(), dtype=dtype, device=parameter.device)
            if parameter.grad is None
            else parameter.grad.reshape(-1)
            for parameter in group
        ]
        flags = [float(parameter.grad is not None) for parameter in group] + [float(failed)]
        flat = torch.cat([*parts, torch.tensor(flags, dtype=dtype, device=first.device)])
        flat[: -len(flags)] *= self._factor
        self._sent.append((flat, self._ranks.start_all_reduce(flat)))

    def finish(self, *, failed: bool = False) -> None:
        """Send the remaining groups, wait, and write the sums into ``.grad``, which stays None if no rank has one.

        Args:
            failed: whether this rank stops, which the other ranks then learn.

        Raises:
            RankError: another rank failed, or does not answer.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        while len(self._sent) < len(self._groups):
            self._send(failed=failed)
        others_failed = False
        for (flat, work), group in zip(self._sent, self._groups, strict=True):
            self._ranks.wait_for(work)
            *parts, flags = flat.split([*(parameter.numel() for parameter in group), len(group) + 1])
            *filled, failures = flags.abs().tolist()  # of complex parameters, too
            others_failed |= failures > 0
            for parameter, part, ranks in zip(group, parts, filled, strict=True):
                if ranks and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter, dtype=part.dtype, requires_grad=False)
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter))
        self._sent = []
        if others_failed and not failed:
            raise RankError(
                "update: another rank stopped in the last backward pass of this window. No rank made a step. See "
                "that rank's error."
            )
