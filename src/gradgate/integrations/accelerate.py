"""Makes accumulation with Accelerate's ``accumulate`` and ``backward`` exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from accelerate import Accelerator
from torch import Tensor

from gradgate.errors import OptionError, UpdateError
from gradgate.events import on_purpose
from gradgate.integrations._trainers import extend, sharding_of
from gradgate.integrations._window_mean import WindowMean

__all__ = ["exact"]

AnyAccelerator = TypeVar("AnyAccelerator", bound=Accelerator)


def exact(accelerator: AnyAccelerator) -> AnyAccelerator:
    """Make accumulation exact: the gradient of a window is the mean over all of its items.

    Changes ``accelerator`` itself; the loop needs no change. Each micro-batch is weighted by its count. The
    ``backward`` call that completes a window divides the sum once, over all processes, before ``clip_grad_norm_``
    and the step. By default, Accelerate divides each mean by ``gradient_accumulation_steps``, which is right only
    if all micro-batches hold the same number of items and every window is full.

    The data are read once, and nothing synchronizes with the device before the window ends.

    Args:
        accelerator: the accelerator of a loop that calls ``accelerator.backward(loss)`` once in each ``with
            accelerator.accumulate(model)``. ``backward`` now also takes ``count=``, the number of items in the
            loss: samples, or valid tokens, as a number or a tensor with one element. If omitted, it is read from
            the loss's graph, where the graph proves it: for one of torch's mean losses over a layer's output.

    Returns:
        the same accelerator.

    Raises:
        OptionError: the processes train with FSDP, DeepSpeed, Megatron-LM or XLA rather than DDP.
        CountError: raised by ``backward``: the count is missing and the graph does not prove it, or the loss is a
            sum.
        GradientError: raised by ``backward``: gradients were changed within a window, or not cleared after it.
        UpdateError: raised by ``backward``: it is called outside ``accumulate``, or twice in one block.

    Example:
        >>> from accelerate import Accelerator
        >>> accelerator = exact(Accelerator(gradient_accumulation_steps=8, cpu=True))

    Sources:
        The derivation, with unequal counts and ranks: docs/exactness.md.
    """
    how = sharding_of(accelerator)
    if how:
        raise OptionError(
            f"exact: this accelerator uses {how}, but only a single process and DDP are supported. For "
            "fully_shard, use a gg.Accumulator in a loop of your own (docs/ranks.md)."
        )
    extended: Any = extend(accelerator, _exact_accelerator)
    extended._gradgate_mean = WindowMean(
        "accelerate", "Pass the count: accelerator.backward(loss, count=len(y)).", accelerator.num_processes
    )
    return accelerator


def _exact_accelerator(kind: type[Any]) -> type[Any]:
    """Return a subclass that also weights each loss, and divides gradients at the end of a window."""

    class ExactAccelerator(kind):  # type: ignore[misc]
        _gradgate_mean: WindowMean
        # The models of the open `accumulate` block, until it calls backward.
        _gradgate_models: tuple[Any, ...] | None = None
        # The models of the last `accumulate` block.
        _gradgate_window: tuple[Any, ...] = ()

        @contextmanager
        def accumulate(self, *models: Any) -> Iterator[None]:
            accelerator: Any = self
            mean = self._gradgate_mean
            mean.guard(accelerator._optimizers)
            mean.divided = False
            with super().accumulate(*models):
                self._gradgate_models = models
                if mean.open and {*map(id, models)} != {*map(id, self._gradgate_window)}:
                    raise UpdateError(
                        "exact: two accumulate blocks of one window name different models, so their losses would "
                        "share one divisor, and Accelerate would count each block as a micro-batch. Use one "
                        "gg.Accumulator for each optimizer (docs/accelerate.md)."
                    )
                self._gradgate_window = models
                try:
                    yield
                finally:
                    self._gradgate_models = None

        def backward(self, loss: Tensor, *, count: Any = None, **kwargs: Any) -> None:
            models, self._gradgate_models = self._gradgate_models, None
            if models is None:
                raise UpdateError(
                    "exact: accelerator.backward was called outside `with accelerator.accumulate(model)`, or "
                    "twice in one block, so it is unknown which micro-batch the loss belongs to. Call it once "
                    "in each block. For several losses, write backward(loss_a + loss_b, count=n). For "
                    "several optimizers, use one gg.Accumulator each (docs/accelerate.md)."
                )
            accelerator: Any = self
            mean = self._gradgate_mean
            mean.before_backward(accelerator._optimizers, models)
            mean.add(loss, count, micro_batches=accelerator.gradient_accumulation_steps)
            with on_purpose():
                super().backward(loss, **kwargs)
            mean.after_backward()
            if accelerator.sync_gradients:
                mean.finish(accelerator.scaler)

    return ExactAccelerator
