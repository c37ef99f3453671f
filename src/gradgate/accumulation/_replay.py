"""Runs a window, and replays it in smaller micro-batches if memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradgate.accumulation._calls import check_window
from gradgate.accumulation._counts import Count, Reduction
from gradgate.accumulation._gradients import on_purpose
from gradgate.accumulation._open_window import TrainingState
from gradgate.accumulation._update import Update
from gradgate.accumulation._windows import (
    Dealt,
    GivenMicroBatches,
    PlannedMicroBatches,
    Windows,
    first_line,
)
from gradgate.autograd_graph import SamplesMixedError
from gradgate.batch_layout import NOT_GIVEN, BatchDim, NotGiven, check_batch
from gradgate.coupled import Encode
from gradgate.errors import BudgetError, CountError, CountWarning, OptionError
from gradgate.forward_state import ForwardState, is_out_of_memory
from gradgate.options import check_choice
from gradgate.ranks import ReplayError, SingleProcess
from gradgate.torch_compat import tensor_version
from gradgate.user_warnings import warn

LossFunction: TypeAlias = "Callable[[Any], Tensor | tuple[Tensor, Count]]"
AddAll: TypeAlias = "Callable[[Update, Sequence[Any]], None]"

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
        check_choice("step", "deal", deal, ("whole", "parts", None))
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
    source_of: Callable[[SingleProcess], GivenMicroBatches | PlannedMicroBatches],
) -> Update:
    """Run a window of the micro-batches that ``source_of`` returns. If memory runs out, split finer and replay."""
    settings = state.settings
    parameters = settings.parameters
    coordinator = state.ranks.coordinator(parameters, settings)  # each attempt makes its own
    versions = [tensor_version(parameter) for parameter in parameters]
    modules = () if coordinator.sharded else settings.models  # sharded models are not replayed
    with on_purpose():  # tells the checker to ignore the copies
        forward_state = ForwardState(modules, parameters, state.at_rest)
    unfinished = state.unfinished
    with _reporting(coordinator):
        source = source_of(coordinator)
    while True:
        update, added = Update(state, may_replay=True), False
        try:
            pieces = source.pieces()
            with update:
                add_all(update, pieces)
                added = True
            with on_purpose():
                forward_state.settle()
            return update
        except ReplayError as error:
            reason = str(error)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            # If the step itself runs out of memory, a finer split does not help. All ranks replay together; under
            # fully_shard they cannot, because the others are in the middle of a pass and wait for this rank.
            may_replay = is_out_of_memory(error) and not (added or coordinator.sharded)
            if not may_replay or not update._coordinator.replays():
                raise
            covered = {id(parameter) for parameter in settings.models.parameters()}
            if not covered.issuperset(map(id, parameters)):
                raise BudgetError(
                    f"step: memory ran out ({first_line(error)}), and the window cannot be replayed in smaller "
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
        try:
            update.backward(loss, count=count, reduction=reduction)
        except CountError as error:
            if count is not None or isinstance(error.__cause__, SamplesMixedError):
                raise
            raise CountError(f"{error} In step, loss_fn returns the count: return loss, y.numel().") from None
        del outcome, loss, data


@contextmanager
def _reporting(coordinator: SingleProcess) -> Iterator[None]:
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
        _warn_of_metric(outcome[1])
        return outcome
    raise OptionError(
        f"step: loss_fn returned a {type(outcome).__name__}"
        f"{f' of {len(outcome)}' if isinstance(outcome, tuple) else ''}; it must return the loss, or the loss and "
        "its count: return loss, y.numel()."
    )


def _warn_of_metric(count: Any) -> None:
    """Warn about a count between 0 and 1, which is probably an accuracy. A count on a device is not read."""
    known = not isinstance(count, Tensor) or (count.is_cpu and count.numel() == 1)
    number = count.item() if known and isinstance(count, Tensor) else count
    if isinstance(number, float) and 0 < number < 1:
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


class CoupledSteps:
    """Adds :meth:`step_coupled` to an accumulator."""

    _state: TrainingState

    def step_coupled(
        self,
        encode: Encode,
        window: Iterable[Any],
        loss_fn: Callable[[Any], Tensor],
        *,
        budget_bytes: float | str | None = None,
        batch_dim: BatchDim | NotGiven = NOT_GIVEN,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Update:
        """Make one update from a loss over a whole window. If memory runs out, split micro-batches and replay.

        Opens a window and calls :meth:`Update.backward_coupled`. If memory runs out, it rolls back, splits and
        replays as :meth:`Accumulator.step` does, and keeps no graphs from then on. The update is the same.

        Args:
            encode: takes a micro-batch and returns its representations.
            window: the micro-batches: a list, or a window from :func:`windows`. To split a single batch, use a
                plan: ``[micro.data for micro in plan.split(batch)]``.
            loss_fn: takes the representations of the whole window and returns their loss.
            budget_bytes: memory for graphs of the first pass; see :meth:`Update.backward_coupled`.
            batch_dim: the dimension of the samples in a micro-batch, if it is not 0.
            collate: turns a list of raw samples into the input of ``encode``. Micro-batches are then such lists.

        Returns:
            the update, closed, for logging.

        Raises:
            OptionError: ``window`` is one batch.
            BudgetError: one sample does not fit, or there is no ``model`` to restore.
            Exception: the same as for :meth:`Update.backward_coupled` and :meth:`Accumulator.update`.

        Example:
            >>> encoder = torch.nn.Linear(3, 2)
            >>> accumulator = Accumulator(torch.optim.SGD(encoder.parameters(), lr=0.1), model=encoder)
            >>> window = torch.randn(8, 3).split(2)
            >>> update = accumulator.step_coupled(encoder, window, lambda z: -torch.cdist(z, z).mean())
            >>> update.count, update.micro_batch_count
            (8, 4)
        """
        check_window(window, "step_coupled")
        state = self._state
        attempts: list[None] = []

        def add_all(update: Update, micro_batches: Sequence[Any]) -> None:
            tight = bool(attempts) or state.samples_that_fit is not None
            attempts.append(None)
            budget = 0 if tight else budget_bytes
            update.backward_coupled(_collated(encode, collate), micro_batches, loss_fn, budget_bytes=budget)

        batch_dim = batch_dim if collate is None else "list"
        given = list(window)
        return run_window(state, add_all, lambda _: GivenMicroBatches(state, given, batch_dim))
