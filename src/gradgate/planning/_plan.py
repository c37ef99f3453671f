"""How a window is cut: the peak of each micro-batch foreseen, the padding least."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.errors import BudgetError, EstimateWarning, OptionError
from gradgate.layout import UNSAID, BatchDim, Unsaid
from gradgate.planning._budget import MARGIN, as_bytes, free_bytes, written
from gradgate.planning._deal import deal
from gradgate.planning._estimate import MARGIN as UNSURE
from gradgate.planning._estimate import Estimate
from gradgate.planning._kinds import identity, kind_of, representative, told
from gradgate.planning._micro_batches import Cut, Part
from gradgate.planning._packing import pack
from gradgate.planning._passes import START_FLOPS, Passes
from gradgate.planning._pool import pooled
from gradgate.planning._samples import Collate, Samples
from gradgate.planning._standing import Standing
from gradgate.planning._trim import Trim
from gradgate.pytree import tensors_in


class Plan:
    """How windows like one batch are cut within a budget. Made by :func:`plan`; ``print`` shows it.

    Attributes:
        budget_bytes: what training may take in all.
        parts: the cut of that batch: indices, length, count and peak of each micro-batch.
        foreseen: True if it was found on fake tensors, False if small micro-batches were run and measured.
        reason: why it could not be foreseen, if so.
        warnings: what a cut changes in this model.
    """

    def __init__(
        self,
        estimate: Estimate,
        budget_bytes: int,
        samples: Samples,
        stands: Standing,
        *,
        reason: str,
        lengths: Any,
        collate: Collate | None,
        batch_dim: BatchDim | Unsaid,
        trim: Trim,
        pad: Any,
        start: float,
    ) -> None:
        self.estimate = estimate
        self.budget_bytes = budget_bytes
        self.standing = stands
        self.foreseen, self.reason = not reason, reason
        self.warnings = tuple(sorted(estimate.mixes))
        self._lengths, self._collate, self._pad, self._start = lengths, collate, pad, start
        self._limit = (
            sys.maxsize
        )  # samples in a micro-batch, once memory has run out where bytes say too little
        self._batch_dim, self._trim = batch_dim, trim
        # Later batches are read as this one was. Its data is not kept.
        self._like = copy.copy(samples)
        self._like.batch = self._like.lengths = None
        self._kind = kind_of(samples)
        self._known = identity(samples.batch) if isinstance(lengths, (Tensor, list)) else None
        self.parts = tuple(self._packed(samples, range(samples.count)))

    def split(self, batch: Any, *, lengths: Any = None, rank: int = 0, ranks: int = 1) -> Cut[Any]:
        """Split one batch into micro-batches that fit.

        Every sample is in exactly one micro-batch. With lengths, samples are put together by length, and padding
        is trimmed; without, micro-batches are equally large, in order. Deterministic.

        Args:
            batch: one, of the same kind as that which the plan was made for. Several are made one by :meth:`pool`.
            lengths: of this batch, where the plan was given none that hold for every one (a key, a function).
            rank: whose share of the batch is split: samples are dealt so that all ranks finish together.
            ranks: among how many ranks the batch is dealt. All have the same batch.

        Raises:
            BudgetError: a sample does not fit into the budget alone.
            OptionError: the batch is of another kind; or which part of it belongs to which sample, or is padding,
                cannot be told.

        Example:
            >>> model = torch.nn.Linear(8, 1)
            >>> p = plan(lambda x: model(x).mean(), torch.ones(100, 8), budget_bytes=255)
            >>> [len(micro.indices) for micro in p.split(torch.ones(100, 8))]
            [34, 33, 33]
        """
        if self._known is not None and lengths is None and self._known() is not representative(batch):
            raise OptionError(
                "split: this plan was given the lengths of one batch, and this is another. Pass its own: "
                "plan.split(batch, lengths=mask); or plan with a key or a function: lengths=lambda batch: batch[1]."
            )
        samples = self._samples(batch, self._lengths if lengths is None else lengths)
        among: Sequence[int] = range(samples.count)
        if ranks > 1:
            if not 0 <= rank < ranks:
                raise OptionError(
                    f"split: rank is {rank}, and there are ranks 0 to {ranks - 1}. Pass dist.get_rank()."
                )
            among = deal(self._work(samples), ranks)[rank]
        return Cut(self._packed(samples, among) if among else [], samples)

    def pool(self, window: Iterable[Any]) -> Any:
        """Make one batch of several, such as a window of loader batches, padded to the width of the widest.

        Args:
            window: batches of the same kind as the one that the plan was made for.

        Returns:
            one batch of the same kind, with all their samples in order, for :meth:`split` or ``Accumulator.step``.

        Raises:
            OptionError: there are none; or they are of different kinds, share different values, or with what they
                are padded cannot be told.

        Example:
            >>> model = torch.nn.Linear(8, 1)
            >>> p = plan(lambda x: model(x).mean(), torch.ones(100, 8), budget_bytes=255)
            >>> p.pool([torch.ones(60, 8), torch.ones(40, 8)]).shape
            torch.Size([100, 8])
        """
        batches = list(window)
        if not batches:
            raise OptionError("pool: the window is empty. Pass at least one batch.")
        if self._known is not None:
            raise OptionError(
                "pool: this plan was given the lengths of one batch, and these are others. Plan with a key or a "
                "function: lengths=lambda batch: batch[1]."
            )
        if self._collate is not None:
            return [sample for batch in batches for sample in batch]
        samples = [self._samples(batch, self._lengths) for batch in batches]
        if len({each.lengths.width for each in samples if each.lengths is not None}) > 1:
            samples = [self._samples(batch, self._lengths, all_full=True) for batch in batches]
        return pooled(samples, self._pad)

    def _samples(self, batch: Any, lengths: Any, *, all_full: bool = False) -> Samples:
        """Return a later batch as samples."""
        samples = Samples(
            batch,
            lengths=lengths,
            collate=self._collate,
            batch_dim=self._batch_dim,
            trim=self._trim,
            like=self._like,
            all_full=all_full,
        )
        kind = kind_of(samples)
        if kind != self._kind:
            raise OptionError(
                f"split: this plan is for batches of {told(self._kind)}, and this one is of {told(kind)}. Make a "
                "plan for it, or pass such batches; several of them are made one by plan.pool(window)."
            )
        if samples.dims and not self._like.dims:
            self._like.dims = samples.dims  # the first batch in which padding shows
        return samples

    def _work(self, samples: Samples) -> list[float]:
        if samples.lengths is None:
            return [1.0] * samples.count
        different = list(dict.fromkeys(samples.lengths.values))
        costs = self.estimate.costs(different)
        return [costs[length] for length in samples.lengths.values]

    def peak_bytes(self, samples: int, length: int = 0) -> int:
        """Return what a pass over so many samples of a length holds at once, beside what stands."""
        return self.estimate.peaks([samples], [length])[0]

    def finer(self, cut: Cut[Any], place: int, *, keep: int = 0) -> Cut[Any]:
        """Learn that memory ran out where it was foreseen to suffice, and cut anew.

        What varies gets half of what that micro-batch was foreseen to take, from now on.

        Args:
            cut: what this plan has made.
            place: of the micro-batch that did not fit.
            keep: micro-batches at the beginning that stay as they are.
        """
        part = cut.parts[place]
        one_sample = self.peak_bytes(1, part.length)
        room = max(part.peak_bytes // 2, one_sample)
        self.budget_bytes = min(self.budget_bytes, self.standing.total_bytes + room)
        if (
            self._room() < one_sample
        ):  # a part of it is left alone, which is no reason to refuse a sample that fits
            room = self.budget_bytes - self.standing.total_bytes
            self.budget_bytes += math.ceil(one_sample * room / self._room()) - room + 1
        (fits,) = self.estimate.most_samples(self._room(), [part.length])
        if fits >= len(part.indices):  # most of what was estimated does not depend on the samples
            self._limit = (len(part.indices) + 1) // 2
        rest = [index for each in cut.parts[keep:] for index in each.indices]
        return Cut([*cut.parts[:keep], *self._packed(cut.samples, rest)], cut.samples)

    def _packed(self, samples: Samples, among: Sequence[int]) -> list[Part]:
        return pack(samples, among, self.estimate, self._room(), self._start, limit=self._limit)

    def _room(self) -> int:
        room = self.budget_bytes - self.standing.total_bytes
        unsure = max(self.estimate.margin(room), 0.0 if self.foreseen else UNSURE)
        if unsure:
            room = int((1 - unsure) * room)
        if room <= 0:
            raise BudgetError(
                f"plan: the budget is {written(self.budget_bytes)}, and {self.standing} stand before anything is "
                "computed. Raise the budget, freeze a part of the model, or use an optimizer with less state."
            )
        return room

    def __str__(self) -> str:
        from gradgate.planning._text import to_text

        return to_text(self)

    def _repr_html_(self) -> str:
        from gradgate.planning._card import to_html

        return to_html(self)


def plan(
    loss_fn: Callable[[Any], Any],
    batch: Any,
    *,
    budget_bytes: float | str | None = None,
    lengths: Any = None,
    collate: Collate | None = None,
    batch_dim: BatchDim | Unsaid = UNSAID,
    trim: Trim = None,
    pad: Any = None,
    optimizer: Optimizer | None = None,
) -> Plan:
    """Estimate what training on a batch takes in memory, and split it so that it fits, with the least padding.

    The loss function runs a few times on fake tensors, which have shapes and no values: nothing is computed,
    nothing allocated. What is live after each operation is a polynomial in samples and length, so the peak of every
    micro-batch is known. One real pass of three samples confirms it, where that takes next to nothing. What fake
    tensors cannot run (``.item()``, numpy, shapes that depend on values), or estimate wrongly, is run and measured
    on a few samples instead. What the passes change is put back: tensors, attributes and items of whatever the loss
    function leads to, gradients, random states. Training after a plan is bit for bit what it is without.

    Args:
        loss_fn: takes a micro-batch, returns its loss, or the loss and its count. Called two to ten
            times, at least once for real unless that takes long.
        batch: one batch like those that the plan will split: a pytree of tensors, numpy arrays and lists with the
            samples along dimension 0 (docs/plan.md has the rule); with ``collate`` a list of raw samples.
        budget_bytes: what parameters, gradients, optimizer state and one forward and backward pass may take
            together: bytes, or "8GiB". None: what the device has free now, less a tenth of it.
        lengths: for samples of unequal length: a mask ``[samples, columns]``, lengths ``[samples]``, the key of
            one of these in the batch, or a function that returns one (with ``collate``: the length of a sample).
        collate: makes a batch of a list of raw samples.
        batch_dim: where the samples are, if not along dimension 0: a dimension, "list" for a list with one entry
            for each, None for what all samples share; or a dict of these by field, such as ``{"table": None}``.
        trim: the fields whose padding is trimmed with ``lengths``, such as ``["input_ids", "labels"]``, or a dict
            with their dimensions; ``()`` for none. Left out, these are ids, labels and masks that show to be padded
            beyond the lengths, and fields that end where these end; any other field as wide is an error.
        pad: with what :meth:`Plan.pool` pads batches to one width where their own padding does not show it: a
            number, or one by key.
        optimizer: its state is counted, also where it has made none yet. None: no state is counted.

    Returns:
        the plan: ``split`` cuts batches, ``print`` shows what the memory is made of.

    Raises:
        BudgetError: one sample does not fit, or nothing does.
        OptionError: the budget, the batch or the lengths cannot be read, or which part of the batch belongs to
            which sample, or is padding; the loss function returns no scalar.

    Warns:
        EstimateWarning: memory grows with the samples in steps, so that more than a twentieth of it is left alone;
            or fake tensors are left where they cannot be removed, with the name of what holds them.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        >>> p = plan(lambda x: model(x).pow(2).mean(), torch.randn(512, 64), budget_bytes="500 KB")
        >>> p.foreseen, [len(part.indices) for part in p.parts]
        (True, [103, 102, 103, 102, 102])
        >>> p.standing.total_bytes + p.peak_bytes(samples=103) < 500_000
        True
    """
    if trim is not None and not isinstance(trim, Mapping):
        trim = (trim,) if isinstance(trim, str) else tuple(trim)
    samples = Samples(batch, lengths=lengths, collate=collate, batch_dim=batch_dim, trim=trim)
    device = next((one.device for one in tensors_in(batch)), torch.device("cpu"))
    given = None if budget_bytes is None else as_bytes(budget_bytes)
    free = int((1 - MARGIN) * free_bytes(device)) if given is None else 0
    passes = Passes(loss_fn, samples, budget_bytes=given or free, optimizer=optimizer, device=device)
    estimate, reason = passes.estimate()
    stands = estimate.standing.beside(optimizer)
    budget = given or free + stands.there_bytes
    room = budget - stands.total_bytes
    margin = estimate.margin(room)
    if margin > UNSURE:
        warnings.warn(
            f"plan: {estimate.doubt(room)}. {margin:.0%} of the memory for a pass is left alone. If that does not "
            "suffice, give a smaller budget_bytes.",
            EstimateWarning,
            stacklevel=2,
        )
    found = Plan(
        estimate,
        budget,
        samples,
        stands,
        reason=reason,
        lengths=lengths,
        collate=collate,
        batch_dim=batch_dim,
        trim=trim,
        pad=pad,
        start=estimate.operations * START_FLOPS.get(device.type, 1e8),
    )
    _tell(found)
    return found


def _tell(plan: Plan) -> None:
    from gradgate.events import Planned, emit  # what trains without being watched does without it

    emit(
        lambda: Planned(
            (),
            plan.budget_bytes,
            plan.standing.total_bytes,
            tuple(part.peak_bytes for part in plan.parts),
            tuple(len(part.indices) for part in plan.parts),
            plan.peak_bytes(
                sum(len(part.indices) for part in plan.parts), max(part.length for part in plan.parts)
            ),
            foreseen=plan.foreseen,
        )
    )
