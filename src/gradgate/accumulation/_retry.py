"""Run a window again, cut finer, when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.accumulation._company import ReplayError
from gradgate.accumulation._counts import Count, Reduction, count_in_graph
from gradgate.accumulation._out_of_memory import is_out_of_memory
from gradgate.accumulation._over_ranks import tell_of
from gradgate.accumulation._parameters import owned_parameters
from gradgate.accumulation._update import Update
from gradgate.errors import BudgetError, OptionError
from gradgate.nests import cut, sample_count
from gradgate.reduction import Engine

if TYPE_CHECKING:
    from gradgate.accumulation._accumulator import Accumulator

LossFunction: TypeAlias = "Callable[[Any], Tensor | tuple[Tensor, Count]]"

Dealt: TypeAlias = Literal["whole", "parts"]
"""What each rank brings of a batch that is dealt to all: the whole of it, or a part."""

_log = logging.getLogger("gradgate")


class Planned(Protocol):
    """What cuts a batch so that it fits: see ``gradgate.plan``."""

    def split(self, batch: Any, /, *, rank: int, ranks: int) -> Any:
        """Return the micro-batches of one rank's share, with ``data`` and ``count``."""
        ...

    def finer(self, cut: Any, place: int, /, *, keep: int) -> Any:
        """Learn that one of them did not fit, and cut all but the first ones anew."""
        ...


class _Listed:
    """Micro-batches that the caller has cut; finer ones where these do not fit."""

    def __init__(self, accumulator: Accumulator, micro_batches: Sequence[Any], keep: int) -> None:
        self._accumulator = accumulator
        # What is in a sum that goes on was cut as the saved state says, and is counted off in these pieces.
        pieces = _cut_to(micro_batches, accumulator.samples_that_fit)
        self._kept, self._rest = (pieces[:keep], pieces[keep:]) if keep else ([], micro_batches)

    def pieces(self) -> Sequence[tuple[Any, Count | None]]:
        rest = _cut_to(self._rest, self._accumulator.samples_that_fit)
        return [(one, None) for one in (*self._kept, *rest)]

    def ran_out(self, place: int, error: BaseException) -> str:
        samples = sample_count(self.pieces()[place][0])
        self._accumulator.samples_that_fit = fits = _next_size(samples, error)
        return f"{samples} samples; replaying the window with {fits}"


class _FromPlan:
    """Micro-batches as a plan cuts them, which learns from those that do not fit."""

    def __init__(self, plan: Planned, batch: Any, keep: int, rank: int, ranks: int) -> None:
        self._plan = plan
        self._cut = plan.split(batch, rank=rank, ranks=ranks)
        self._keep = keep

    def pieces(self) -> Sequence[tuple[Any, Count | None]]:
        return _Lazily(self._cut)

    def ran_out(self, place: int, error: BaseException) -> str:
        samples = len(self._cut[place].indices)
        _next_size(samples, error)
        self._cut = self._plan.finer(self._cut, place, keep=self._keep)
        return f"{samples} samples, for which the plan foresaw less; replaying the window with fewer"


class _Lazily(Sequence[tuple[Any, "Count | None"]]):
    """The data and count of micro-batches, each put together when it is its turn."""

    def __init__(self, cut: Sequence[Any]) -> None:
        self._cut = cut

    def __len__(self) -> int:
        return len(self._cut)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Lazily(self._cut[place])
        micro = self._cut[place]
        return micro.data, micro.count


def run_window(
    accumulator: Accumulator,
    loss_fn: LossFunction,
    batch: Any,
    reduction: Reduction,
    plan: Planned | None = None,
    dealt: Dealt | None = None,
) -> Update:
    """Run a window; each time memory runs out, roll back, cut finer, and replay."""
    parameters = owned_parameters(accumulator._settings.optimizers)
    engine = accumulator._engine(parameters)
    surroundings = Surroundings(accumulator._models)
    unfinished = accumulator._unfinished
    keep = unfinished["micro_batches"] if unfinished is not None else 0
    try:
        source = _source(accumulator, batch, keep, plan, dealt, engine)
    except Exception as error:
        if engine is not None and not engine.ranks.broken:
            tell_of(engine, error, replay=False)
        raise
    while True:
        attempt = _Attempt(accumulator.update())
        try:
            attempt.run(loss_fn, source.pieces(), reduction)
            return attempt.update
        except ReplayError as error:
            told = str(error)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not attempt.can_replay(error):
                raise
            told = attempt.cut_finer(source, error)
        # Only here, after the exception and the frames that it held are gone, is their memory free.
        accumulator._unfinished = unfinished
        surroundings.restore()
        _free_caches()
        _log.warning("step: out of memory with %s", told)


def _source(
    accumulator: Accumulator,
    batch: Any,
    keep: int,
    plan: Planned | None,
    dealt: Dealt | None,
    engine: Engine | None,
) -> _Listed | _FromPlan:
    if plan is None:
        return _Listed(accumulator, list(batch), keep)
    if engine is None or dealt is None:
        return _FromPlan(plan, batch, keep, 0, 1)
    ranks = engine.ranks
    return _FromPlan(
        plan, batch if dealt == "whole" else ranks.put_together(batch), keep, ranks.rank, ranks.count
    )


class _Attempt:
    """One run through a window, and how far it came."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.place = -1  # of the micro-batch that runs
        self._finished_adding = False

    def run(
        self, loss_fn: LossFunction, pieces: Sequence[tuple[Any, Count | None]], reduction: Reduction
    ) -> None:
        self.update._company.may_replay = True
        with self.update:
            for data, count in self.update.micro_batches(pieces):
                self.place = self.update.micro_batch_count - 1
                outcome = loss_fn(data)
                loss, given = _loss_and_count(outcome)
                if given is None and count is not None:
                    given = count_in_graph(loss) if reduction == "mean" else None
                    given = count if given is None else given
                self.update.backward(loss, count=given, reduction=reduction)
                del outcome, loss, data
            self._finished_adding = True

    def can_replay(self, error: BaseException) -> bool:
        """Say whether a finer cut can help: memory ran out in a forward or backward, not in the step.

        Over ranks all of them have to replay, which they do unless one stopped by something else.
        """
        if self.update._company.sharded is not None:
            return False  # the others stand in the middle of a pass, and wait for this rank there
        return not self._finished_adding and is_out_of_memory(error) and self.update._company.all_replay

    def cut_finer(self, source: _Listed | _FromPlan, error: BaseException) -> str:
        """Cut what did not fit; return what is to be told of it."""
        try:
            return source.ran_out(self.place, error)
        except BudgetError as end:
            if self.update._company.engine is not None:  # the others replay, and would wait for this rank
                tell_of(self.update._company.engine, end, replay=False)
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


def _next_size(samples: int | None, error: BaseException) -> int:
    if samples is None:
        raise BudgetError(
            f"step: memory ran out ({_first_line(error)}), and this micro-batch cannot be cut finer: its tensors "
            "have no common first dimension. Pass tensors, or tuples, dicts or dataclasses of tensors, with the "
            "samples along dimension 0; or smaller micro-batches."
        ) from error
    if samples <= 1:
        raise BudgetError(
            f"step: one sample alone runs out of memory ({_first_line(error)}). A batch cannot be cut below one "
            "sample: shorten it, recompute activations (torch.utils.checkpoint), or free memory elsewhere. "
            "Nothing was stepped."
        ) from error
    return (samples + 1) // 2


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _cut_to(micro_batches: Sequence[Any], most: int | None) -> list[Any]:
    """Cut every micro-batch that holds more than ``most`` samples into equal parts that do not."""
    pieces: list[Any] = []
    for micro_batch in micro_batches:
        samples = None if most is None else sample_count(micro_batch)
        if most is None or samples is None or samples <= most:
            pieces.append(micro_batch)
        else:
            pieces.extend(cut(micro_batch, -(-samples // most)))
    return pieces


class Surroundings:
    """What a forward pass changes beside gradients: module buffers and random state; to be put back."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in modules
            if module.training
            for name, buffer in module._buffers.items()  # named_buffers() would take as long as the forward
            if buffer is not None and not is_lazy(buffer)
        ]
        self._random = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if _cuda_in_use() else []

    @torch.no_grad()
    def restore(self) -> None:
        """Put buffers and random state back."""
        for module, name, buffer, copied in self._buffers:
            setattr(module, name, buffer)  # some modules put a new tensor in its place
            buffer.copy_(copied)
        torch.set_rng_state(self._random)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _free_caches() -> None:
    gc.collect()  # graphs of Python autograd functions can stand in reference cycles
    if _cuda_in_use():
        torch.cuda.empty_cache()


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())
