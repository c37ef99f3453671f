"""Run a window; again, in smaller micro-batches, when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction
from gradgate.accumulation._forward_state import ForwardState, is_out_of_memory
from gradgate.accumulation._gradients import on_purpose
from gradgate.accumulation._open_window import TrainingState
from gradgate.accumulation._update import Update
from gradgate.errors import BudgetError, CountError, OptionError
from gradgate.layout import BatchDim, Unsaid, layout_of
from gradgate.ranks import ALONE, ReplayError, SingleProcess
from gradgate.torch_compat import tensor_version

LossFunction: TypeAlias = "Callable[[Any], Tensor | tuple[Tensor, Count]]"

Dealt: TypeAlias = Literal["whole", "parts"]
"""What each rank brings of a batch that is dealt to all: the whole of it, or a part."""

_log = logging.getLogger("gradgate")


class Planned(Protocol):
    """What splits a batch so that it fits: see ``gradgate.plan``."""

    def split(self, batch: Any, /, *, rank: int, ranks: int) -> Any:
        """Return the micro-batches of one rank's share, with ``data``."""
        ...

    def pool(self, window: Any, /) -> Any:
        """Return one batch of several."""
        ...

    def finer(self, split: Any, place: int, /, *, keep: int) -> Any:
        """Learn that one of them did not fit, and split all but the first ones anew."""
        ...


class GivenMicroBatches:
    """Micro-batches as the caller has them; smaller ones where these do not fit.

    Args:
        state: remembers how many samples fit.
        micro_batches: as given.
        batch_dim: where they hold their samples.
    """

    def __init__(
        self, state: TrainingState, micro_batches: Sequence[Any], batch_dim: BatchDim | Unsaid
    ) -> None:
        self._state, self._batch_dim = state, batch_dim
        # What is in a sum that goes on was split as the saved state says, and is counted off in these pieces.
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
        """Halve the size that fits."""
        data, samples = self._pieces[index]
        if samples is None:
            try:
                samples = layout_of(data, self._batch_dim).samples
            except OptionError as unreadable:
                raise BudgetError(
                    f"step: memory ran out ({_first_line(error)}), and this micro-batch cannot be split: "
                    f"{str(unreadable).removeprefix('split: ')} Or pass smaller micro-batches. Nothing was stepped."
                ) from error
        self._state.samples_that_fit = fits = _next_size(samples, error)
        return f"{samples} samples; replaying the window with {fits}"

    def _split(self, micro_batches: Sequence[Any]) -> list[tuple[Any, int | None]]:
        """Split what holds more samples than fit into equal parts; return them with their samples."""
        most = self._state.samples_that_fit
        if most is None:
            return [(micro_batch, None) for micro_batch in micro_batches]
        return [piece for micro_batch in micro_batches for piece in self._split_to(micro_batch, most)]

    def _split_to(self, micro_batch: Any, most: int) -> list[tuple[Any, int | None]]:
        try:
            layout = layout_of(micro_batch, self._batch_dim)
        except OptionError:  # it may fit as it is; otherwise this is raised when memory runs out
            return [(micro_batch, None)]
        if layout.samples <= most:
            return [(micro_batch, layout.samples)]
        return list(layout.split(micro_batch, -(-layout.samples // most)))


class PlannedMicroBatches:
    """Micro-batches as a plan splits a batch; it learns from those that do not fit.

    Args:
        state: of the accumulator.
        plan: how to split.
        batch: this rank's own, or what all ranks train on.
        dealt: what each rank brings of a batch that is dealt to all; None for a batch of its own.
        coordinator: of the ranks.
    """

    def __init__(
        self, state: TrainingState, plan: Planned, batch: Any, dealt: Dealt | None, coordinator: SingleProcess
    ) -> None:
        self._plan = plan
        self._keep = _kept(state)
        if dealt is None or coordinator is ALONE:
            self._split = plan.split(batch, rank=0, ranks=1)
            return
        whole = batch if dealt == "whole" else plan.pool(coordinator.gather_batches(batch))
        self._split = plan.split(whole, rank=coordinator.rank, ranks=coordinator.count)

    def pieces(self) -> Sequence[Any]:
        """Return the micro-batches of the plan."""
        return _LazyData(self._split)

    def ran_out(self, index: int, error: BaseException) -> str:
        """Have the plan split the rest finer."""
        samples = len(self._split[index].indices)
        _next_size(samples, error)
        self._split = self._plan.finer(self._split, index, keep=self._keep)
        return f"{samples} samples, for which the plan estimated less; replaying the window with fewer"


class _LazyData(Sequence[Any]):
    """The data of micro-batches, each collected when it is its turn."""

    def __init__(self, micro_batches: Sequence[Any]) -> None:
        self._micro_batches = micro_batches

    def __len__(self) -> int:
        return len(self._micro_batches)

    def __getitem__(self, index: Any) -> Any:
        found = self._micro_batches[index]
        return _LazyData(found) if isinstance(index, slice) else found.data


def _kept(state: TrainingState) -> int:
    """Return how many micro-batches are in the sum of a saved window already."""
    return state.unfinished["micro_batches"] if state.unfinished is not None else 0


def run_window(
    state: TrainingState,
    loss_fn: LossFunction,
    reduction: Reduction,
    source_of: Callable[[SingleProcess], GivenMicroBatches | PlannedMicroBatches],
) -> Update:
    """Run a window; each time memory runs out, roll back, split finer, and replay.

    Args:
        state: of the accumulator whose update it is.
        loss_fn: takes a micro-batch.
        reduction: what the loss is, over its items.
        source_of: takes the coordinator of the ranks; returns the micro-batches.
    """
    settings = state.settings
    parameters = settings.parameters
    coordinator = state.ranks.coordinator(parameters, settings)
    versions = [tensor_version(parameter) for parameter in parameters]
    # What is sharded is not replayed, see can_replay.
    modules = settings.models if coordinator.sharded is None else ()
    with on_purpose():  # copies leave no graph
        forward_state = ForwardState(modules, parameters, state.at_rest)
    unfinished = state.unfinished
    try:
        source = source_of(coordinator)
    except Exception as error:
        coordinator.report_outside(error)
        raise
    while True:
        attempt = _Attempt(state, coordinator)
        try:
            attempt.run(loss_fn, source.pieces(), reduction)
            with on_purpose():
                forward_state.settle()
            return attempt.update
        except ReplayError as error:
            reason = str(error)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not attempt.can_replay(error):
                raise
            covered = {id(parameter) for parameter in settings.models.parameters()}
            if not covered.issuperset(map(id, parameters)):
                raise BudgetError(
                    f"step: memory ran out ({_first_line(error)}), and without the whole model the window cannot "
                    "be replayed in smaller micro-batches: what the forward pass has changed in it (batch norms, "
                    "momentum encoders, counters) could not be put back. Name all modules that the optimizers "
                    "step: Accumulator(optimizer, model=model). Nothing was stepped."
                ) from error
            with attempt.reporting():
                reason = source.ran_out(attempt.index, error)
        # Only here, after the exception and the frames that it held are gone, is their memory free.
        state.unfinished = unfinished
        _free_caches()
        with attempt.reporting():
            if versions != [tensor_version(parameter) for parameter in parameters]:
                raise BudgetError(
                    "step: memory ran out, and the window cannot be replayed: loss_fn has changed parameters that "
                    "this accumulator's optimizers own, beside their step. Do that after it."
                )
            with on_purpose():
                forward_state.restore()
        _log.warning("step: out of memory with %s", reason)


def run_given(
    state: TrainingState,
    loss_fn: LossFunction,
    micro_batches: list[Any],
    reduction: Reduction,
    batch_dim: BatchDim | Unsaid,
    collate: Callable[[list[Any]], Any] | None,
) -> Update:
    """Run a window of micro-batches that exist."""
    if collate is not None:
        batch_dim = "list"

    def collated(data: Any) -> Any:
        return loss_fn(data if collate is None else collate(data))

    return run_window(
        state, collated, reduction, lambda _: GivenMicroBatches(state, micro_batches, batch_dim)
    )


class _Attempt:
    """One run through a window, and how far it came."""

    def __init__(self, state: TrainingState, coordinator: SingleProcess) -> None:
        self.update = Update(state, may_replay=True)
        self.index = -1  # of the micro-batch that runs
        self._coordinator = coordinator
        self._finished_adding = False

    def run(self, loss_fn: LossFunction, pieces: Sequence[Any], reduction: Reduction) -> None:
        with self.update:
            for data in self.update.micro_batches(pieces):
                self.index = self.update.micro_batch_count - 1
                outcome = loss_fn(data)
                loss, count = _loss_and_count(outcome)
                try:
                    self.update.backward(loss, count=count, reduction=reduction)
                except CountError as error:
                    if count is not None:
                        raise
                    raise CountError(
                        f"{error} In step, loss_fn returns it: return loss, y.numel()."
                    ) from None
                del outcome, loss, data
            self._finished_adding = True

    def can_replay(self, error: BaseException) -> bool:
        """Say whether a finer split can help: memory ran out in a forward or backward, not in the step.

        Over ranks all of them have to replay, which they do unless one stopped by something else.
        """
        if self._coordinator.sharded is not None:
            return False  # the others are in the middle of a pass, and wait for this rank there
        return not self._finished_adding and is_out_of_memory(error) and self._coordinator.replays(True)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report a BudgetError to the other ranks, which replay and would wait for this one."""
        try:
            yield
        except BudgetError as end:
            self._coordinator.report_outside(end)
            raise


def _loss_and_count(outcome: Any) -> tuple[Tensor, Count | None]:
    """Take apart what a loss function returned."""
    if isinstance(outcome, Tensor):
        return outcome, None
    if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[0], Tensor):
        return outcome
    raise OptionError(
        f"step: loss_fn returned a {type(outcome).__name__}"
        f"{f' of {len(outcome)}' if isinstance(outcome, tuple) else ''}; it returns the loss, or the loss and its "
        "count: return loss, y.numel()."
    )


def _next_size(samples: int, error: BaseException) -> int:
    if samples <= 1:
        raise BudgetError(
            f"step: one sample alone runs out of memory ({_first_line(error)}). A batch cannot be split below one "
            "sample: shorten it, recompute activations (torch.utils.checkpoint), or free memory elsewhere. "
            "Nothing was stepped."
        ) from error
    return (samples + 1) // 2


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _free_caches() -> None:
    gc.collect()  # graphs of Python autograd functions can be in reference cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
