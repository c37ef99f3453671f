"""Make a plan: estimate the memory of a loss function's passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from gradgate.batch_layout import NOT_GIVEN, BatchDim, NotGiven
from gradgate.byte_sizes import as_bytes
from gradgate.errors import EstimateWarning
from gradgate.options import check_function
from gradgate.planning._estimate import UNCERTAINTY_MARGIN
from gradgate.planning._estimator import Estimator
from gradgate.planning._plan import Plan
from gradgate.planning._samples import BatchOptions, Collate, Samples
from gradgate.planning._trim import Trim
from gradgate.user_warnings import warn


def plan(
    loss_fn: Callable[[Any], Any],
    batch: Any,
    *,
    budget_bytes: float | str | None = None,
    lengths: Any = None,
    collate: Collate | None = None,
    batch_dim: BatchDim | NotGiven = NOT_GIVEN,
    trim: Trim = None,
    pad: Any = None,
    optimizer: Optimizer | None = None,
) -> Plan:
    """Estimate the memory that training on a batch needs, and split the batch to fit, with the least padding.

    The loss function runs a few times on fake tensors, which have shapes but no values, so nothing is computed or
    allocated. The live memory after each operation is a polynomial in the number of samples and their length. From
    it, the plan computes the peak of every micro-batch. One real pass of three samples confirms the estimate, if it
    takes almost no time. If fake tensors cannot run the loss function (``.item()``, numpy, shapes that depend on
    values), or give a wrong estimate, real passes of a few samples are measured instead. The plan then restores
    gradients, random states, and the tensors, attributes and items of everything that the loss function can reach.
    Training after a plan is bit for bit the same as without it.

    Args:
        loss_fn: takes a micro-batch and returns its loss, or the loss and its count. It is called two to ten
            times, at least once on real tensors unless that takes long.
        batch: a typical training batch: a pytree of tensors, numpy arrays and lists with the samples along
            dimension 0 (details: docs/plan.md), or, with ``collate``, a list of raw samples.
        budget_bytes: the total memory for parameters, gradients, optimizer state and one forward and backward
            pass, in bytes or as "8GiB". None: 90% of the memory that is free now. If the passes run on an
            accelerator, the budget is for its memory only, not for that of the CPU.
        lengths: for samples of unequal length: a mask ``[samples, columns]``, lengths ``[samples]``, the
            batch's key for either, or a function that returns either (with ``collate``: the length of a sample).
        collate: makes a batch from a list of raw samples.
        batch_dim: where the samples are, if not along dimension 0: another dimension, "list" for a list with one
            entry per sample, or None for data that all samples share. Or a dict of these by field, such as
            ``{"table": None}``. Needed for a tensor that may be shared although it is as long as the batch: class
            weights, a mask ``[T, T]`` (the rule: docs/plan.md).
        trim: the fields whose padding is trimmed with ``lengths``, such as ``["input_ids", "labels"]``, or a dict
            with their dimensions; ``()`` for none. By default: ids, labels and masks that are visibly padded beyond
            the lengths, and other fields whose padding starts exactly at the lengths. Any other field of that width
            is an error.
        pad: the value with which :meth:`Plan.pool` pads batches to one width, if their own padding does not
            show it: a number, or a dict of numbers by field.
        optimizer: the optimizer whose state is included, even before its first step. None: no state is included.

    Returns:
        the plan: ``split`` splits batches, ``print`` shows what uses the memory.

    Raises:
        BudgetError: one sample does not fit, or the budget leaves nothing for a pass.
        OptionError: the budget, the batch or the lengths cannot be read; it is unclear which part of the batch
            belongs to which sample, or which part is padding; the loss function returns no scalar; under
            ``fully_shard`` over several ranks, fake tensors cannot run it.

    Warns:
        EstimateWarning: the estimate is uncertain, so the plan leaves more than a twentieth of the memory unused;
            the optimizer cannot step fake tensors, so its state is not counted before its first step; or the plan
            leaves fake tensors in an object that it cannot restore, and the message names the object.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        >>> p = plan(lambda x: model(x).pow(2).mean(), torch.randn(512, 64), budget_bytes="500 KB")
        >>> p.estimated, [len(part.indices) for part in p.parts]
        (True, [103, 102, 103, 102, 102])
        >>> p.resident.total_bytes + p.peak_bytes(samples=103) < 500_000
        True
    """
    check_function("plan", "loss_fn", loss_fn, "gg.plan(loss_fn, batch)")
    if trim is not None and not isinstance(trim, Mapping):
        trim = (trim,) if isinstance(trim, str) else tuple(trim)
    options = BatchOptions(lengths, collate, batch_dim, trim, pad)
    samples = Samples(batch, options)
    given = None if budget_bytes is None else as_bytes(budget_bytes)
    estimator = Estimator(loss_fn, samples, budget_bytes=given, optimizer=optimizer)
    estimate = estimator.estimate()
    resident = estimate.resident.with_optimizer(optimizer)
    budget = estimator.budget(resident)
    available = budget - resident.total_bytes
    margin = estimate.margin(available)
    if optimizer is not None and resident.state_bytes is None:
        estimator.warnings.append(
            f"plan: the optimizer's state is not counted: {resident.unknown_state}. Memory may run out within the "
            "budget. Plan after the first step, when the state is there, or pass a smaller budget_bytes."
        )
    if margin > UNCERTAINTY_MARGIN:
        estimator.warnings.append(
            f"plan: {estimate.uncertainty(available)}. {margin:.0%} of the memory for a pass is left unused. If "
            "memory still runs out, pass a smaller budget_bytes."
        )
    for text in dict.fromkeys(estimator.warnings):
        warn(text, EstimateWarning)
    found = Plan(estimate, budget, samples, resident, options)
    from gradgate.events import Planned, emit  # lazily: training without the checker does not need it

    sizes = tuple(len(part.indices) for part in found.parts)
    whole = found.peak_bytes(sum(sizes), max(part.length for part in found.parts))
    peaks = tuple(part.peak_bytes for part in found.parts)
    emit(lambda: Planned((), budget, resident.total_bytes, peaks, sizes, whole))
    return found
