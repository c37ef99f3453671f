"""Scale the learning rate with the effective batch size, and warm it up."""

from __future__ import annotations

import math
import os
from typing import Literal

import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR

from gradgate.errors import OptionError
from gradgate.options import check_choice


def scale_lr(
    optimizer: Optimizer,
    *,
    batch: int,
    base_batch: int,
    rule: Literal["linear", "sqrt"] = "linear",
    per_rank: bool = False,
) -> float:
    """Scale the learning rate of every group from the batch size it was tuned for to the current one.

    Accumulation changes the effective batch size: micro-batch size times micro-batches per window, times the
    number of ranks. With a mean loss a larger batch gives a gradient of the same size with less noise, so
    it allows larger steps, up to the batch size that :class:`gradgate.NoiseScale` measures.

    Args:
        optimizer: the ``lr`` of each group is changed in place. Call this once, before a scheduler is made.
        batch: samples (or tokens) per update now, over all ranks.
        base_batch: samples (or tokens) per update for which ``lr`` was tuned, over all ranks.
        rule: "linear", ``lr * batch / base_batch``, is usual for SGD; "sqrt", ``lr * sqrt(batch /
            base_batch)``, is usual for Adam.
        per_rank: whether ``batch`` is the batch of a single rank, to be multiplied by the number of processes in
            ``torch.distributed`` (1 without it). If only some of the processes train on their own data, leave
            this out and pass the whole batch.

    Returns:
        the factor; pass it to :func:`warmup`.

    Raises:
        OptionError: a batch is not positive, the rule is unknown, a scheduler already holds the old rate, or
            ``per_rank`` is used before torch.distributed is initialized.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> scale_lr(optimizer, batch=4096, base_batch=256)
        16.0
        >>> optimizer.param_groups[0]["lr"]
        1.6

    Sources:
        Linear: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1. Square root: Krizhevsky
        2014, "One weird trick", section 5; for Adam, Malladi et al. 2022, "On the SDEs and Scaling Rules
        for Adaptive Gradient Algorithms".
    """
    for name, size in (("batch", batch), ("base_batch", base_batch)):
        if not size > 0:
            raise OptionError(
                f"scale_lr: {name} is {size}, but the number of samples per update must be positive."
            )
    check_choice("scale_lr", "rule", rule, ("linear", "sqrt"))
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise OptionError(
            "scale_lr: a scheduler was already made for this optimizer and holds the unscaled rate; its next "
            "step would undo the scaling. Call scale_lr before creating the scheduler."
        )
    ratio = batch * (_ranks() if per_rank else 1) / base_batch
    factor = ratio if rule == "linear" else math.sqrt(ratio)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    return factor


def _ranks() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    started = int(os.environ.get("WORLD_SIZE", "1"))  # by torchrun
    if started > 1:
        raise OptionError(
            f"scale_lr: per_rank is True, and WORLD_SIZE is {started}, but torch.distributed was not "
            "initialized, so ranks cannot be counted. Call torch.distributed.init_process_group() first."
        )
    return 1


def warmup(optimizer: Optimizer, *, updates: int, factor: float) -> LinearLR:
    """Return a schedule that raises the learning rate linearly from ``lr / factor`` to ``lr``.

    A rate scaled up for a large batch is too large for the first updates, where the loss has the most
    curvature.

    Args:
        optimizer: the rates of its groups are set to ``lr / factor`` immediately, as torch's schedulers do on
            creation.
        updates: the number of updates over which the rate rises, ``>= 1``. Goyal et al. use 5 epochs.
        factor: the factor that :func:`scale_lr` returned, ``>= 1``.

    Returns:
        a ``LinearLR``; pass it to ``Accumulator(scheduler=...)``, alone, in a list with other schedulers, or
        as the first part of a ``SequentialLR``.

    Raises:
        OptionError: ``updates`` or ``factor`` is below 1.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=1.6)
        >>> schedule = warmup(optimizer, updates=100, factor=16.0)
        >>> optimizer.param_groups[0]["lr"]
        0.1

    Sources:
        Goyal et al. 2017, section 2.2, "gradual warmup".
    """
    if updates < 1 or not factor >= 1:
        raise OptionError(
            f"warmup: updates is {updates} and factor {factor}; both must be at least 1. A rate that was "
            "scaled down needs no warm-up."
        )
    return LinearLR(optimizer, start_factor=1.0 / factor, end_factor=1.0, total_iters=updates)
