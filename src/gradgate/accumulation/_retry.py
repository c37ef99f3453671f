"""Run a window again, in smaller micro-batches, when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from gradgate.accumulation._backward import on_purpose
from gradgate.accumulation._company import ReplayError
from gradgate.accumulation._counts import Count, Reduction
from gradgate.accumulation._out_of_memory import is_out_of_memory
from gradgate.accumulation._over_ranks import tell_of
from gradgate.accumulation._parameters import owned_parameters
from gradgate.accumulation._surroundings import Surroundings
from gradgate.accumulation._update import Update
from gradgate.batch_layout import BatchDim, Unsaid, layout_of
from gradgate.errors import BudgetError, CountError, OptionError
from gradgate.ranks import Engine, Sharded
from gradgate.torch_compat import tensor_version

if TYPE_CHECKING:
    from gradgate.accumulation._accumulator import Accumulator

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


class _Listed:
    """Micro-batches as the caller has them; smaller ones where these do not fit."""

    def __init__(
        self, accumulator: Accumulator, micro_batches: Sequence[Any], keep: int, batch_dim: BatchDim | Unsaid
    ) -> None:
        self._accumulator, self._batch_dim = accumulator, batch_dim
        # What is in a sum that goes on was split as the saved state says, and is counted off in these pieces.
        pieces = self._split(micro_batches) if keep else []
        self._kept = pieces[:keep]
        self._rest = [data for data, _ in pieces[keep:]] if keep else micro_batches
        self._pieces: list[tuple[Any, int | None]] = []

    def pieces(self) -> Sequence[Any]:
        self._pieces = [*self._kept, *self._split(self._rest)]
        return [data for data, _ in self._pieces]

    def ran_out(self, place: int, error: BaseException) -> str:
        data, samples = self._pieces[place]
        if samples is None:
            try:
                samples = layout_of(data, self._batch_dim).samples
            except OptionError as unreadable:
                raise BudgetError(
                    f"step: memory ran out ({_first_line(error)}), and this micro-batch cannot be split: "
                    f"{str(unreadable).removeprefix('split: ')} Or pass smaller micro-batches. Nothing was stepped."
                ) from error
        self._accumulator.samples_that_fit = fits = _next_size(samples, error)
        return f"{samples} samples; replaying the window with {fits}"

    def _split(self, micro_batches: Sequence[Any]) -> list[tuple[Any, int | None]]:
        """Split what holds more samples than fit into equal parts that do not; return them with their samples."""
        most = self._accumulator.samples_that_fit
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


class _FromPlan:
    """Micro-batches as a plan splits a batch; it learns from those that do not fit."""

    def __init__(self, plan: Planned, batch: Any, keep: int, rank: int, ranks: int) -> None:
        self._plan = plan
        self._cut = plan.split(batch, rank=rank, ranks=ranks)
        self._keep = keep

    def pieces(self) -> Sequence[Any]:
        return _Lazily(self._cut)

    def ran_out(self, place: int, error: BaseException) -> str:
        samples = len(self._cut[place].indices)
        _next_size(samples, error)
        self._cut = self._plan.finer(self._cut, place, keep=self._keep)
        return f"{samples} samples, for which the plan foresaw less; replaying the window with fewer"


class _Lazily(Sequence[Any]):
    """The data of micro-batches, each put together when it is its turn."""

    def __init__(self, micro_batches: Sequence[Any]) -> None:
        self._micro_batches = micro_batches

    def __len__(self) -> int:
        return len(self._micro_batches)

    def __getitem__(self, place: Any) -> Any:
        found = self._micro_batches[place]
        return _Lazily(found) if isinstance(place, slice) else found.data


def run_window(
    accumulator: Accumulator,
    loss_fn: LossFunction,
    reduction: Reduction,
    source_of: Callable[[int, Engine | None], _Listed | _FromPlan],
) -> Update:
    """Run a window; each time memory runs out, roll back, split finer, and replay.

    Args:
        accumulator: whose update it is.
        loss_fn: takes a micro-batch.
        reduction: what the loss is, over its items.
        source_of: takes how many micro-batches a saved state holds, and the engine; returns the micro-batches.
    """
    parameters = owned_parameters(accumulator._settings.optimizers)
    engine = accumulator._engine(parameters)
    versions = [tensor_version(parameter) for parameter in parameters]
    # What is sharded is not replayed, see can_replay.
    modules = () if isinstance(engine, Sharded) else accumulator._models
    with on_purpose():  # copies leave no graph
        surroundings = Surroundings(modules, parameters, accumulator._at_rest)
    unfinished = accumulator._unfinished
    keep = unfinished["micro_batches"] if unfinished is not None else 0
    try:
        source = source_of(keep, engine)
    except Exception as error:
        if engine is not None and not engine.ranks.broken:
            tell_of(engine, error, replay=False)
        raise
    while True:
        attempt = _Attempt(accumulator.update())
        try:
            attempt.run(loss_fn, source.pieces(), reduction)
            with on_purpose():
                surroundings.settle()
            return attempt.update
        except ReplayError as error:
            told = str(error)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not attempt.can_replay(error):
                raise
            covered = {id(parameter) for parameter in accumulator._models.parameters()}
            if not covered.issuperset(map(id, parameters)):
                raise BudgetError(
                    f"step: memory ran out ({_first_line(error)}), and without the whole model the window cannot "
                    "be replayed in smaller micro-batches: what the forward pass has changed in it (batch norms, "
                    "momentum encoders, counters) could not be put back. Name all modules that the optimizers "
                    "step: Accumulator(optimizer, model=model). Nothing was stepped."
                ) from error
            told = attempt.split_finer(source, error)
        # Only here, after the exception and the frames that it held are gone, is their memory free.
        accumulator._unfinished = unfinished
        _free_caches()
        with attempt.ending_all():
            if versions != [tensor_version(parameter) for parameter in parameters]:
                raise BudgetError(
                    "step: memory ran out, and the window cannot be replayed: loss_fn has changed parameters that "
                    "this accumulator's optimizers own, beside their step. Do that after it."
                )
            with on_purpose():
                surroundings.restore()
        _log.warning("step: out of memory with %s", told)


def in_micro_batches(
    accumulator: Accumulator, micro_batches: Sequence[Any], batch_dim: BatchDim | Unsaid
) -> Callable[[int, Engine | None], _Listed]:
    """Return the source of micro-batches that exist."""
    return lambda keep, _: _Listed(accumulator, micro_batches, keep, batch_dim)


def by_plan(plan: Planned, batch: Any, dealt: Dealt | None) -> Callable[[int, Engine | None], _FromPlan]:
    """Return the source of micro-batches that a plan makes of a batch, or of one rank's share of it."""

    def source(keep: int, engine: Engine | None) -> _FromPlan:
        if engine is None or dealt is None:
            return _FromPlan(plan, batch, keep, 0, 1)
        ranks = engine.ranks
        whole = batch if dealt == "whole" else plan.pool(ranks.put_together(batch))
        return _FromPlan(plan, whole, keep, ranks.rank, ranks.count)

    return source


class _Attempt:
    """One run through a window, and how far it came."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.place = -1  # of the micro-batch that runs
        self._finished_adding = False

    def run(self, loss_fn: LossFunction, pieces: Sequence[Any], reduction: Reduction) -> None:
        self.update._company.may_replay = True
        with self.update:
            for data in self.update.micro_batches(pieces):
                self.place = self.update.micro_batch_count - 1
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
        """Say whether a finer cut can help: memory ran out in a forward or backward, not in the step.

        Over ranks all of them have to replay, which they do unless one stopped by something else.
        """
        if self.update._company.sharded is not None:
            return False  # the others stand in the middle of a pass, and wait for this rank there
        return not self._finished_adding and is_out_of_memory(error) and self.update._company.all_replay

    @contextmanager
    def ending_all(self) -> Iterator[None]:
        """Report a BudgetError to the other ranks, which replay and would wait for this one."""
        try:
            yield
        except BudgetError as end:
            if self.update._company.engine is not None:
                tell_of(self.update._company.engine, end, replay=False)
            raise

    def split_finer(self, source: _Listed | _FromPlan, error: BaseException) -> str:
        """Split what did not fit; return what is to be reported of it."""
        with self.ending_all():
            return source.ran_out(self.place, error)


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
    gc.collect()  # graphs of Python autograd functions can stand in reference cycles
    if _cuda_in_use():
        torch.cuda.empty_cache()


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())
