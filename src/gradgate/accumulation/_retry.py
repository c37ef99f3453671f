"""Run a window again, cut finer, when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.accumulation._counts import Count, Reduction
from gradgate.accumulation._nests import cut, sample_count
from gradgate.accumulation._parameters import owned_parameters
from gradgate.accumulation._update import Update
from gradgate.errors import BudgetError, OptionError

if TYPE_CHECKING:
    from gradgate.accumulation._accumulator import Accumulator

LossFunction: TypeAlias = "Callable[[Any], Tensor | tuple[Tensor, Count]]"

_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: ",  # RuntimeError of the CPU allocator
    "MPS backend out of memory",  # RuntimeError on Apple's GPUs
    "CUDA error: out of memory",  # AcceleratorError outside the caching allocator
    "CUBLAS_STATUS_ALLOC_FAILED",  # RuntimeError of cuBLAS, for its workspace
)

_log = logging.getLogger("gradgate")


def run_window(
    accumulator: Accumulator, loss_fn: LossFunction, micro_batches: Sequence[Any], reduction: Reduction
) -> Update:
    """Run a window; each time memory runs out, roll back, halve the largest micro-batch, and replay."""
    accumulator._modules.look_for(owned_parameters(accumulator._settings.optimizers))
    surroundings = Surroundings(accumulator._modules)
    unfinished = accumulator._unfinished
    done: Sequence[Any] = ()
    if unfinished is not None:
        # What is in the sum already was cut as the saved state says, and is counted off in these pieces.
        pieces = _cut_to(micro_batches, accumulator.samples_that_fit)
        done, micro_batches = pieces[: unfinished["micro_batches"]], pieces[unfinished["micro_batches"] :]
    while True:
        pieces = [*done, *_cut_to(micro_batches, accumulator.samples_that_fit)]
        attempt = _Attempt(accumulator.update())
        try:
            attempt.run(loss_fn, pieces, reduction)
            return attempt.update
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not attempt.ran_out_of_memory(error):
                raise
            samples = sample_count(attempt.piece)
            fits = _next_size(samples, error)
        # Only here, after the exception and the frames that it held are gone, is their memory free.
        accumulator.samples_that_fit = fits
        accumulator._unfinished = unfinished
        surroundings.restore()
        _free_caches()
        _log.warning("step: out of memory with %s samples; replaying the window with %d", samples, fits)


class _Attempt:
    """One run through a window, and how far it came."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.piece: Any = None
        self._finished_adding = False

    def run(self, loss_fn: LossFunction, pieces: Sequence[Any], reduction: Reduction) -> None:
        with self.update:
            for piece in self.update.micro_batches(pieces):
                self.piece = piece
                outcome = loss_fn(piece)
                loss, count = _loss_and_count(outcome)
                self.update.backward(loss, count=count, reduction=reduction)
                del outcome, loss
            self._finished_adding = True

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Say whether a finer cut can help: memory ran out in a forward or backward, not in the step."""
        return not self._finished_adding and is_out_of_memory(error)


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


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that memory ran out, by its type or by what torch writes in others."""
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in _OUT_OF_MEMORY)


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
