"""Gradients that go over ranks while the last backward pass of a window still runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gradgate.errors import RankError, UpdateError
from gradgate.ranks._process_group import Ranks, bucketed


class Buckets:
    """The gradients of some parameters, in groups that are sent as soon as they are complete.

    All ranks send the same groups in the same order, the last parameters first, as backward passes come by them; a
    group that is complete early waits for those before it. With each group goes whether a rank has filled it at
    all, and whether a rank failed, so that one that stops in the middle leaves nobody waiting.
    """

    def __init__(self, ranks: Ranks, parameters: Sequence[Tensor]) -> None:
        self._ranks = ranks
        self._groups = bucketed(list(reversed(parameters)), lambda one: one.grad_dtype or one.dtype)
        self._ready: set[int] = set()
        self._sent: list[tuple[Tensor, Any]] = []
        self._hooks: list[RemovableHandle] = []
        self._factor = 1.0

    def start(self, factor: float) -> None:
        """Send groups from now on, as a backward pass completes them: ``factor`` times what stands in ``.grad``."""
        self._factor = factor
        parameters = [one for group in self._groups for one in group if one.requires_grad]
        self._hooks = [one.register_post_accumulate_grad_hook(self._filled) for one in parameters]

    def _filled(self, parameter: Tensor) -> None:
        self._ready.add(id(parameter))
        while len(self._sent) < len(self._groups) and all(
            id(one) in self._ready or not one.requires_grad for one in self._groups[len(self._sent)]
        ):
            self._send(failed=False)

    def _send(self, *, failed: bool) -> None:
        group = self._groups[len(self._sent)]
        if any(one.grad is not None and one.grad.is_sparse for one in group):
            raise UpdateError(
                "update: a gradient is sparse, which sync='overlap' does not send. Leave it at sync='last'."
            )
        first = group[0]
        dtype = first.grad_dtype or first.dtype
        parts = [
            torch.zeros(one.numel(), dtype=dtype, device=one.device)
            if one.grad is None
            else one.grad.reshape(-1)
            for one in group
        ]
        flags = [float(one.grad is not None) for one in group] + [float(failed)]
        flat = torch.cat([*parts, torch.tensor(flags, dtype=dtype, device=first.device)])
        flat[: -len(flags)] *= self._factor
        self._sent.append((flat, self._ranks.start_adding_up(flat)))

    def finish(self, *, failed: bool = False) -> None:
        """Send what is left, wait for all, and put the sums into ``.grad``; where nobody filled it stays None.

        Args:
            failed: this rank stops: the others are told, and its own gradients are left to be rolled back.

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
            *parts, flags = flat.split([*(one.numel() for one in group), len(group) + 1])
            *filled, failures = flags.tolist()
            others_failed |= failures > 0
            for one, part, ranks in zip(group, parts, filled, strict=True):
                if ranks and one.grad is None:
                    one.grad = torch.zeros_like(one, dtype=part.dtype, requires_grad=False)
                if one.grad is not None:
                    one.grad.copy_(part.view_as(one))
        self._sent, self._ready = [], set()
        if others_failed and not failed:
            raise RankError(
                "update: another rank stopped in the last backward pass of this window. Nothing was stepped on any "
                "rank. Look at its own error."
            )
