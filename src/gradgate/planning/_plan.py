"""A plan, which splits batches so that they fit into memory, with the least padding."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradgate.byte_sizes import format_bytes
from gradgate.errors import BudgetError, OptionError
from gradgate.planning._estimate import UNCERTAINTY_MARGIN, Estimate
from gradgate.planning._memory import ResidentMemory
from gradgate.planning._micro_batches import Part, Split, counted, deal, pack
from gradgate.planning._samples import BatchOptions, Samples, pooled
from gradgate.planning._summary import summary_rows
from gradgate.pytree import tensors_in


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
        # The limits per micro-batch, lowered if memory runs out despite the estimate.
        self._most_bytes = self._most_samples = sys.maxsize
        # Shows how to read later batches. The data is not kept.
        self._like = copy.copy(samples)
        self._like.batch = self._like.lengths = None
        self._kind = samples.kind
        self._only_batch: Callable[[], Any] | None = None
        if isinstance(options.lengths, (Tensor, list)):
            first = _first_tensor(samples.batch)
            self._only_batch = weakref.ref(first) if isinstance(first, Tensor) else lambda: first
        self.parts = tuple(self._packed(samples, range(samples.count)))

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
            batch: one batch of the same kind as the plan's. To join several into one, use :meth:`pool`.
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
        return Split(self._packed(samples, among), samples)

    def pool(self, window: Iterable[Any]) -> Any:
        """Join several batches, such as a window of loader batches, into one, padded to the width of the widest.

        Args:
            window: batches of the same kind as the plan's.

        Returns:
            One batch with all their samples in order, for :meth:`split` or ``Accumulator.step``.

        Raises:
            OptionError: the window is empty; its batches are of different kinds, differ in a shared value, or do
                not show their padding value.

        Example:
            >>> model = torch.nn.Linear(8, 1)
            >>> p = plan(lambda x: model(x).mean(), torch.ones(100, 8), budget_bytes=255)
            >>> p.pool([torch.ones(60, 8), torch.ones(40, 8)]).shape
            torch.Size([100, 8])
        """
        batches = list(window)
        if not batches:
            raise OptionError("pool: the window is empty. Pass at least one batch.")
        if self._only_batch is not None:
            raise OptionError(
                "pool: this plan was given the lengths of one batch, but pool needs those of every batch. Plan "
                "with a key or a function: lengths=lambda batch: batch[1]."
            )
        if self._options.collate is not None:
            return [sample for batch in batches for sample in batch]
        samples = [self._read(batch) for batch in batches]
        if len({each.lengths.width for each in samples if each.lengths is not None}) > 1:
            samples = [self._read(batch, even_if_full=True) for batch in batches]
        return pooled(samples, self._options.pad)

    def _read(self, batch: Any, lengths: Any = None, *, even_if_full: bool = False) -> Samples:
        """Return a later batch as samples."""
        options = self._options if lengths is None else replace(self._options, lengths=lengths)
        samples = Samples(batch, options, self._like, even_if_full=even_if_full)
        if samples.kind != self._kind:
            raise OptionError(
                f"split: the plan was made for {self._kind}, but got {samples.kind}. Make "
                "another plan, or pass batches of the plan's kind. plan.pool(window) joins several into one."
            )
        if samples.dims and not self._like.dims:
            self._like.dims = samples.dims  # the first batch that shows padding
        return samples

    def peak_bytes(self, samples: int, length: int = 0) -> int:
        """Return the estimated peak of a pass over samples of one length, without resident memory."""
        return self.estimate.peaks([samples], [length])[0]

    def finer(self, split: Split[Any], index: int, *, keep: int = 0) -> Split[Any]:
        """Split again after a micro-batch ran out of memory although it was estimated to fit.

        From now on, a pass may take at most half of the memory that was estimated for that micro-batch.

        Args:
            split: a split that this plan made.
            index: the index of the micro-batch that did not fit.
            keep: the number of micro-batches at the beginning that do not change.
        """
        part = split.parts[index]
        self._most_bytes = max(part.peak_bytes // 2, self.peak_bytes(1, part.length))
        (fits,) = self.estimate.most_samples(self._available(), [part.length], len(part.indices))
        if fits == len(part.indices):  # most of the estimated memory does not depend on the samples
            self._most_samples = (len(part.indices) + 1) // 2
        rest = [sample for each in split.parts[keep:] for sample in each.indices]
        return Split([*split.parts[:keep], *self._packed(split.samples, rest)], split.samples)

    def _packed(self, samples: Samples, among: Sequence[int]) -> list[Part]:
        return pack(samples, among, self.estimate, self._available(), limit=self._most_samples)

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
        return min(available, self._most_bytes)

    def __repr__(self) -> str:
        samples = sum(len(part.indices) for part in self.parts)
        how = "estimated" if self.estimated else "measured"
        budget = format_bytes(self.budget_bytes)
        return f"Plan({samples} samples in {counted(len(self.parts))}, {budget}, {how})"

    def __str__(self) -> str:
        rows = summary_rows(self.parts, self.estimate, self.resident, self.budget_bytes)
        return "\n".join(f"{row.label:13}{row.text}".rstrip() for row in rows)


def _first_tensor(batch: Any) -> Any:
    """Return an object that identifies a batch, even if its containers are new ones."""
    return next(tensors_in(batch), batch)
