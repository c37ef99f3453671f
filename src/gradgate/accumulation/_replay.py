"""Runs a window, and replays it in smaller micro-batches if memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction, items_of_terms
from gradgate.accumulation._sums import on_purpose
from gradgate.accumulation._window import TrainingState, Update
from gradgate.accumulation._windows import Windows
from gradgate.batch_layout import BatchDim, Layout, NotGiven, check_batch, layout_of
from gradgate.coupled import Encode
from gradgate.errors import BudgetError, CountWarning, OptionError
from gradgate.forward_state import ForwardState, is_out_of_memory
from gradgate.options import check_choice
from gradgate.ranks import ALONE, Coordinator, ReplayError
from gradgate.torch_compat import tensor_version
from gradgate.user_warnings import warn

LossFunction: TypeAlias = "Callable[[Any], Tensor | tuple[Tensor, Count]]"
AddAll: TypeAlias = "Callable[[Update, Sequence[Any]], None]"

Dealt: TypeAlias = Literal["whole"]
"""Each rank passes the whole batch, which is distributed over ranks."""

_log = logging.getLogger("gradgate")


def run_batch(
    state: TrainingState,
    loss_fn: LossFunction,
    batch: Any,
    plan: Any,
    deal: Dealt | None,
    reduction: Reduction,
    batch_dim: BatchDim | NotGiven,
    collate: Callable[[list[Any]], Any] | None,
) -> Update:
    """Check the arguments of :meth:`Accumulator.step`, and run the window of one batch."""
    plain = collate is None and isinstance(batch_dim, NotGiven)
    if plan is not None:
        check_choice("step", "deal", deal, ("whole", None))
        if not plain:
            raise OptionError(
                "step: with a plan, pass batch_dim and collate to the plan: gradgate.plan(..., batch_dim=...)."
            )
        return run_window(
            state,
            partial(_add_each, loss_fn, reduction),
            partial(PlannedMicroBatches, state, plan, batch, deal),
        )
    if deal is not None:
        raise OptionError("step: deal needs a plan, which estimates the cost of each sample. Pass plan=...")
    if plain:
        check_batch(batch, "step", "accumulator.step_window(loss_fn, window)", Windows)
    return run_given(state, loss_fn, [batch], reduction, batch_dim, collate)


def run_given(
    state: TrainingState,
    loss_fn: LossFunction,
    micro_batches: list[Any],
    reduction: Reduction,
    batch_dim: BatchDim | NotGiven,
    collate: Callable[[list[Any]], Any] | None,
) -> Update:
    """Run a window of given micro-batches."""
    add_all = partial(_add_each, _collated(loss_fn, collate), reduction)
    batch_dim = batch_dim if collate is None else "list"
    return run_window(state, add_all, lambda _: GivenMicroBatches(state, micro_batches, batch_dim))


def _collated(
    function: Callable[[Any], Any], collate: Callable[[list[Any]], Any] | None
) -> Callable[[Any], Any]:
    return function if collate is None else lambda samples: function(collate(samples))


def run_window(
    state: TrainingState,
    add_all: AddAll,
    source_of: Callable[[Coordinator], GivenMicroBatches | PlannedMicroBatches],
) -> Update:
    """Run a window of the micro-batches that ``source_of`` returns. If memory runs out, split finer and replay."""
    settings = state.settings
    parameters = settings.parameters
    coordinator = state.ranks.coordinator(parameters, settings)  # each attempt makes its own
    versions = [tensor_version(parameter) for parameter in parameters]
    forward_state = None
    if settings.models and not coordinator.sharded:  # otherwise, the window is not replayed
        with on_purpose():  # tells the checker to ignore the copies
            forward_state = ForwardState(settings.models, parameters, state.at_rest)
    unfinished = state.unfinished
    with _reporting(coordinator):
        source = source_of(coordinator)
    while True:
        planned = isinstance(source, PlannedMicroBatches)
        update, added = Update(state, may_replay=True, planned=planned), False
        try:
            pieces = source.pieces()
            with update:
                add_all(update, pieces)
                added = True
            if forward_state is not None:
                with on_purpose():
                    forward_state.settle()
            return update
        except ReplayError as error:
            if forward_state is None:
                raise
            reason = str(error)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            # If the step itself runs out of memory, a finer split does not help. All ranks replay together; under
            # fully_shard they cannot, because the others are in the middle of a pass and wait for this rank.
            may_replay = is_out_of_memory(error) and not (added or coordinator.sharded)
            if not may_replay or not update._coordinator.replays():
                raise
            covered = {id(parameter) for parameter in settings.models.parameters()}
            if forward_state is None or not covered.issuperset(map(id, parameters)):
                raise BudgetError(
                    f"step: memory ran out ({_first_line(error)}), and the window cannot be replayed in smaller "
                    "micro-batches: without the whole model, changes by the forward pass (batch norms, momentum "
                    "encoders, counters) cannot be restored. Pass all modules that hold parameters of the "
                    "optimizers: Accumulator(optimizer, model=model). No step was made."
                ) from error
            with _reporting(coordinator):
                reason = source.ran_out(update._running, error)
        # Memory is free only here, after the exception and its frames are gone.
        state.unfinished = unfinished
        _free_caches()
        with _reporting(coordinator):
            if versions != [tensor_version(parameter) for parameter in parameters]:
                raise BudgetError(
                    "step: memory ran out, and the window cannot be replayed: loss_fn itself changed "
                    "parameters that this accumulator's optimizers own. Change them after step() instead."
                )
            with on_purpose():
                changed = forward_state.changed_at_rest()
            if changed:
                raise BudgetError(
                    "step: memory ran out, and the window cannot be replayed: the forward pass has changed "
                    f"{', '.join(changed)}, which was not copied because no earlier window had changed it. No step "
                    "was made, but the changes of the forward pass remain. Load a checkpoint and use smaller "
                    "micro-batches."
                )
            with on_purpose():
                forward_state.restore()
        _log.warning("step: out of memory with %s", reason)


def _add_each(
    loss_fn: LossFunction, reduction: Reduction, update: Update, micro_batches: Sequence[Any]
) -> None:
    """Add the loss of each micro-batch."""
    for data in update.micro_batches(micro_batches):
        outcome = loss_fn(data)
        loss, count = _loss_and_count(outcome)
        if update._first:
            _warn_of_metric(loss, count)
        update.backward(loss, count=count, reduction=reduction)
        del outcome, loss, data


@contextmanager
def _reporting(coordinator: Coordinator) -> Iterator[None]:
    """Report an error in the block to the other ranks, which would otherwise wait for this rank in the window."""
    try:
        yield
    except Exception as error:
        coordinator.report_outside(error)
        raise


def _loss_and_count(outcome: Any) -> tuple[Tensor, Count | None]:
    """Split what a loss function returned into the loss and its count; None if it returned no count."""
    if isinstance(outcome, Tensor):
        return outcome, None
    if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[0], Tensor):
        return outcome
    raise OptionError(
        f"step: loss_fn returned a {type(outcome).__name__}"
        f"{f' of {len(outcome)}' if isinstance(outcome, tuple) else ''}; it must return the loss, or the loss and "
        "its count: return loss, y.numel()."
    )


def _warn_of_metric(loss: Tensor, count: Any) -> None:
    """Warn if a count is between 0 and 1, but the loss is a mean over more items: it is probably an accuracy.

    A sum of sample weights may also be below 1, but then it divides the loss. A count on a device is not read.
    """
    known = not isinstance(count, Tensor) or (count.is_cpu and count.numel() == 1)
    number = count.item() if known and isinstance(count, Tensor) else count
    if (
        isinstance(number, float)
        and 0 < number < 1
        and any(float(items) >= 1 for _, items in items_of_terms(loss))
    ):
        warn(
            "step: loss_fn returned a number between 0 and 1 with its loss. This number is used as the loss's "
            "count, by which micro-batches are weighted. If it is an accuracy or another metric, return the loss "
            "and its number of items instead: return loss, y.numel().",
            CountWarning,
        )


def _free_caches() -> None:
    gc.collect()  # graphs with Python autograd functions can form reference cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def run_coupled(
    state: TrainingState,
    encode: Encode,
    window: list[Any],
    loss_fn: Callable[[Any], Tensor],
    batch_dim: BatchDim | NotGiven,
    collate: Callable[[list[Any]], Any] | None,
) -> Update:
    """Run a window with one loss over all of its items."""

    def add_all(update: Update, micro_batches: Sequence[Any]) -> None:
        update.backward_coupled(_collated(encode, collate), micro_batches, loss_fn)

    batch_dim = batch_dim if collate is None else "list"
    return run_window(state, add_all, lambda _: GivenMicroBatches(state, window, batch_dim))


class GivenMicroBatches:
    """The caller's micro-batches, split further if they do not fit."""

    def __init__(
        self, state: TrainingState, micro_batches: Sequence[Any], batch_dim: BatchDim | NotGiven
    ) -> None:
        self._state, self._batch_dim = state, batch_dim
        # The saved count refers to split micro-batches, so split before skipping that many.
        keep = _kept(state)
        pieces = self._split(micro_batches) if keep else []
        self._kept = pieces[:keep]
        self._rest = [data for data, _ in pieces[keep:]] if keep else micro_batches
        self._pieces: list[tuple[Any, int | None]] = []

    def pieces(self) -> Sequence[Any]:
        """Return the micro-batches, split to the size that fits."""
        self._pieces = [*self._kept, *self._split(self._rest)]
        return [data for data, _ in self._pieces]

    def ran_out(self, index: int, error: BaseException) -> str:
        """Halve the size of micro-batches; return what to log."""
        data, samples = self._pieces[index]
        if samples is None:
            try:
                samples = self._layout(data).samples
            except OptionError as unreadable:
                raise BudgetError(
                    f"step: memory ran out ({_first_line(error)}), and this micro-batch cannot be split: "
                    f"{str(unreadable).removeprefix('split: ')} Or pass smaller micro-batches. No step was made."
                ) from error
        if samples == 1:
            raise _one_sample_alone(self._layout(data), error) from error
        self._state.samples_that_fit = fits = (samples + 1) // 2
        return f"{samples} samples; replaying the window with {fits}"

    def _layout(self, data: Any) -> Layout:
        return layout_of(data, self._batch_dim)

    def _split(self, micro_batches: Sequence[Any]) -> list[tuple[Any, int | None]]:
        """Split micro-batches that are too large into equal parts; return the parts with their sample counts."""
        most = self._state.samples_that_fit
        if most is None:
            return [(micro_batch, None) for micro_batch in micro_batches]
        return [piece for micro_batch in micro_batches for piece in self._split_to(micro_batch, most)]

    def _split_to(self, micro_batch: Any, most: int) -> list[tuple[Any, int | None]]:
        try:
            layout = self._layout(micro_batch)
        except OptionError:  # it may fit unsplit; otherwise this error is raised when memory runs out
            return [(micro_batch, None)]
        if layout.samples <= most:
            return [(micro_batch, layout.samples)]
        return list(layout.split(micro_batch, -(-layout.samples // most)))


class PlannedMicroBatches:
    """The micro-batches of a plan. If some do not fit, the plan splits the rest of the batch into smaller ones.

    With ``dealt``, each rank passes the whole batch and gets its share. If None, each keeps its own samples.
    """

    def __init__(
        self,
        state: TrainingState,
        plan: Any,
        batch: Any,
        dealt: Dealt | None,
        coordinator: Coordinator,
    ) -> None:
        self._plan = plan
        self._keep = _kept(state)
        if dealt is None or coordinator is ALONE:
            self._split = plan.split(batch, rank=0, ranks=1)
            return
        self._split = plan.split(batch, rank=coordinator.rank, ranks=coordinator.count)

    def pieces(self) -> Sequence[Any]:
        """Return the micro-batches of the plan."""
        return _LazyData(self._split)

    def ran_out(self, index: int, error: BaseException) -> str:
        """Let the plan split the rest into smaller micro-batches; return what to log."""
        micro_batch = self._split[index]
        samples = len(micro_batch.indices)
        if samples == 1:
            raise _one_sample_alone(micro_batch.samples.layout, error) from error
        self._split = self._plan.finer(self._split, index, keep=self._keep)
        return f"{samples} samples, which the plan had estimated to fit; replaying the window with fewer"


class _LazyData(Sequence[Any]):
    """The data of micro-batches, each assembled on access."""

    def __init__(self, micro_batches: Sequence[Any]) -> None:
        self._micro_batches = micro_batches

    def __len__(self) -> int:
        return len(self._micro_batches)

    def __getitem__(self, index: Any) -> Any:
        found = self._micro_batches[index]
        return _LazyData(found) if isinstance(index, slice) else found.data


def _kept(state: TrainingState) -> int:
    """Return how many micro-batches are already in the sum of a saved window."""
    return state.unfinished["micro_batches"] if state.unfinished is not None else 0


def _one_sample_alone(layout: Layout, error: BaseException) -> BudgetError:
    return BudgetError(
        f"step: one sample alone runs out of memory ({_first_line(error)}). A batch cannot be split below one "
        "sample: shorten the sample, recompute activations (torch.utils.checkpoint), or free memory elsewhere. "
        f"Samples were counted {layout.where()}; if they are elsewhere, pass batch_dim=. No step was made."
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
