"""A plan, which estimates the memory of passes, and splits batches so that they fit, with the least padding."""

from __future__ import annotations

import copy
import operator
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradgate.batch_layout import NOT_GIVEN, BatchDim, NotGiven
from gradgate.byte_sizes import as_bytes, format_bytes
from gradgate.errors import BudgetError, EstimateWarning, OptionError
from gradgate.options import check_function
from gradgate.planning._estimate import UNCERTAINTY_MARGIN, Estimate
from gradgate.planning._estimator import Estimator
from gradgate.planning._memory import ResidentMemory
from gradgate.planning._micro_batches import Split, counted, deal, pack
from gradgate.planning._samples import BatchOptions, Collate, Samples, Trim
from gradgate.pytree import tensors_in
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
            the lengths. Any other field of that width is an error.
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
            leaves fake tensors in an object that it cannot restore, and the message names its type.

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
    options = BatchOptions(lengths, collate, batch_dim, trim)
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
    return Plan(estimate, budget, samples, resident, options)


class Plan:
    """Splits batches of one kind so that they fit a memory budget. Made by :func:`plan`; ``print`` shows it.

    Attributes:
        budget_bytes: the memory that training may take in total.
        resident: the memory that stays allocated between passes: parameters, gradients, optimizer state.
        parts: the split of the given batch: indices, length, count and estimated peak of each micro-batch.
        reason: why real passes were measured; "" if they were not.
        unchecked: why no real pass confirms the estimate; "" if one does.
    """

    def __init__(
        self,
        estimate: Estimate,
        budget_bytes: int,
        samples: Samples,
        resident: ResidentMemory,
        options: BatchOptions,
    ) -> None:
        self.estimate = estimate
        self.budget_bytes = budget_bytes
        self.resident = resident
        self.reason, self.unchecked = estimate.measured, estimate.unchecked
        self._options = options
        self._most_columns = sys.maxsize  # of a micro-batch; lowered if memory runs out despite the estimate
        # Shows how to read later batches. The data is not kept.
        self._like = copy.copy(samples)
        self._like.batch = self._like.lengths = None
        self._kind = samples.kind
        self._only_batch: Callable[[], Any] | None = None
        if isinstance(options.lengths, (Tensor, list)):
            first = _first_tensor(samples.batch)
            self._only_batch = weakref.ref(first) if isinstance(first, Tensor) else lambda: first
        parts = self._packed(samples, range(samples.count))
        self.parts = Split[Any](replace(part, samples=self._like) for part in parts)

    @property
    def estimated(self) -> bool:
        """Whether peaks were estimated with fake tensors; otherwise small real passes were measured."""
        return not self.reason

    @property
    def warnings(self) -> tuple[str, ...]:
        """Operations that mix the samples of a micro-batch, so that a split changes their result."""
        return ("batch norm",) if self.estimate.has_batch_norm else ()

    def split(self, batch: Any, *, lengths: Any = None, rank: int = 0, ranks: int = 1) -> Split[Any]:
        """Split one batch into micro-batches that fit.

        Every sample is in exactly one micro-batch. With lengths, samples of similar length go together, and padding
        is trimmed. Without lengths, micro-batches are equally large and keep the batch's order. The result is
        deterministic.

        Args:
            batch: one batch of the same kind as the plan's.
            lengths: the lengths of this batch's samples, if the plan was given neither a key nor a function.
            rank: the rank whose share of the batch is split. All shares take about the same time.
            ranks: the number of ranks. All ranks pass the same batch.

        Raises:
            BudgetError: one sample does not fit into the budget.
            OptionError: the batch is of another kind, or it is unclear which part of it belongs to which sample, or
                which part is padding.

        Example:
            >>> model = torch.nn.Linear(8, 1)
            >>> p = plan(lambda x: model(x).mean(), torch.ones(100, 8), budget_bytes=255)
            >>> [len(micro.indices) for micro in p.split(torch.ones(100, 8))]
            [34, 33, 33]
        """
        if (
            self._only_batch is not None
            and lengths is None
            and self._only_batch() is not _first_tensor(batch)
        ):
            raise OptionError(
                "split: this plan was given the lengths of another batch. Pass this batch's lengths: "
                "plan.split(batch, lengths=mask); or plan with a key or a function: lengths=lambda batch: batch[1]."
            )
        samples = self._read(batch, lengths)
        among: Sequence[int] = range(samples.count)
        if ranks > 1:
            if not 0 <= rank < ranks:
                raise OptionError(
                    f"split: rank is {rank}, but it must be from 0 to {ranks - 1}. Pass dist.get_rank()."
                )
            lengths_of_all = [0] * samples.count if samples.lengths is None else samples.lengths.values
            costs = self.estimate.costs(list(dict.fromkeys(lengths_of_all)))
            among = deal([costs[length] for length in lengths_of_all], ranks)[rank]
        return self._packed(samples, among)

    def _read(self, batch: Any, lengths: Any) -> Samples:
        """Return a later batch as samples."""
        options = self._options if lengths is None else replace(self._options, lengths=lengths)
        samples = Samples(batch, options, self._like)
        if samples.kind != self._kind:
            raise OptionError(
                f"split: the plan was made for {self._kind}, but got {samples.kind}. Make "
                "another plan, or pass batches of the plan's kind."
            )
        if samples.dims and not self._like.dims:
            self._like.dims = samples.dims  # the first batch that shows padding
        return samples

    def peak_bytes(self, samples: int, length: int = 0) -> int:
        """Return the estimated peak of a pass over samples of one length, without resident memory."""
        return self.estimate.peaks([samples], [length])[0]

    def finer(self, split: Split[Any], index: int, *, keep: int = 0) -> Split[Any]:
        """Split again after a micro-batch ran out of memory although it was estimated to fit.

        From now on, micro-batches have at most half as many columns (samples, if they are not trimmed).

        Args:
            split: a split that this plan made.
            index: the index of the micro-batch that did not fit.
            keep: the number of micro-batches at the beginning that do not change.
        """
        failed = split[index]
        self._most_columns = len(failed.indices) * max(failed.length, 1) // 2
        rest = [sample for part in split[keep:] for sample in part.indices]
        return Split([*split[:keep], *self._packed(failed.samples, rest)])

    def _packed(self, samples: Samples, among: Sequence[int]) -> Split[Any]:
        return pack(samples, among, self.estimate, self._available(), self._most_columns)

    def _available(self) -> int:
        """Return the bytes that a pass may take."""
        available = self.budget_bytes - self.resident.total_bytes
        margin = max(self.estimate.margin(available), 0.0 if self.estimated else UNCERTAINTY_MARGIN)
        if margin:
            available = int((1 - margin) * available)
        if available <= 0:
            raise BudgetError(
                f"plan: the budget is {format_bytes(self.budget_bytes)}, but {self.resident} stay allocated "
                "between passes. Raise the budget, freeze a part of the model, or use an optimizer with less state."
            )
        return available

    def __repr__(self) -> str:
        samples = sum(len(part.indices) for part in self.parts)
        how = "estimated" if self.estimated else "measured"
        budget = format_bytes(self.budget_bytes)
        return f"Plan({samples} samples in {counted(len(self.parts))}, {budget}, {how})"

    def __str__(self) -> str:
        return "\n".join(f"{label:13}{text}".rstrip() for label, text in self._rows())

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yield the memory by kind and the split, as pairs of a label and a text."""
        parts, resident, estimate = self.parts, self.resident, self.estimate
        peak = resident.total_bytes + parts.peak_bytes
        yield "budget", format_bytes(self.budget_bytes)
        yield "  parameters", f"{format_bytes(resident.parameter_bytes)}, including buffers"
        yield "  gradients", format_bytes(resident.gradient_bytes)
        state = resident.state_bytes
        yield (
            "  optimizer",
            f"not counted: {resident.unknown_state}" if state is None else format_bytes(state),
        )
        yield "  one pass", f"{format_bytes(parts.peak_bytes)} at most"
        yield "peak", f"{format_bytes(peak)} ({peak / self.budget_bytes:.0%} of the budget)"
        yield "", ""
        sizes, lengths = [len(part.indices) for part in parts], [part.length for part in parts]
        in_order = bool(lengths[0])
        yield "split", f"{sum(sizes)} samples in {counted(len(parts))}: {_listed(sizes, in_order=in_order)}"
        if in_order:
            yield "lengths", _listed(lengths)
            columns, whole = sum(map(operator.mul, sizes, lengths)), sum(sizes) * max(lengths)
            unsplit = 1 - (1 - parts.padding) * columns / whole
            yield (
                "padding",
                f"{parts.padding:.1%} of {columns:,} columns; unsplit it would be {unsplit:.0%} of {whole:,}",
            )
        if estimate.measured:
            yield "measured", f"on small micro-batches: {estimate.measured}"
        available = self.budget_bytes - resident.total_bytes
        uncertainty = estimate.uncertainty(available)
        if uncertainty:
            left = f"{estimate.margin(available):.0%} of a pass's memory is left unused"
            yield "uncertain", f"{uncertainty}; {left}"
        if estimate.unchecked:
            yield "unchecked", estimate.unchecked
        if self.warnings:
            yield "not exact", "batch norm mixes the samples of a micro-batch: a split changes its statistics"


def _listed(numbers: list[int], *, in_order: bool = True) -> str:
    """Return numbers as "6 x 72, 8 x 71", or as "30, 28, ... 3"."""
    times = Counter(numbers)
    if len(times) < len(numbers) and (len(times) == 1 or (len(times) == 2 and not in_order)):
        return ", ".join(f"{count} x {number}" for number, count in times.items())
    texts = [str(number) for number in numbers]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]])


def _first_tensor(batch: Any) -> Any:
    """Return an object that identifies a batch, even if its containers are new ones."""
    return next(tensors_in(batch), batch)
