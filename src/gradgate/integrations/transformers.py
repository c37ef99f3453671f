"""Makes accumulation in the ``Trainer`` of transformers exact, and watches its gradients."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer, TrainerCallback

from gradgate.autograd_graph import only_input
from gradgate.checker.reports import Report
from gradgate.errors import OptionError, UpdateError
from gradgate.events import on_purpose
from gradgate.integrations._trainers import extend, sharding_of
from gradgate.integrations._watched import Watched, WatchingCallback
from gradgate.integrations._window_mean import WindowMean

__all__ = ["WatchGradientsCallback", "exact"]

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


class WatchGradientsCallback(WatchingCallback, TrainerCallback):  # type: ignore[misc]  # from an optional library
    """Watch a training run from start to end and report what is wrong with its gradients.

    A callback for ``Trainer(callbacks=[...])`` of transformers. It does not change the computation.

    If ``Trainer.train`` raises, it calls no callback. Watching then ends, with a report, as soon as :attr:`report`
    is read, another training begins or any optimizer steps; at the latest when the callback is deleted or the
    process ends.

    Args:
        select: report only these rules: codes ("GG103"), prefixes of codes ("GG1") or categories.
        ignore: do not report these rules.
        raise_on: raise at the end of the training if there are findings of this severity or worse.
        output: a file to write the report to, in the format of its extension: .html, .json, .sarif or .txt.
        show: print the report when the training ends.

    With several ranks, each rank watches itself, and the first one prints and writes its own report. To get a
    report on all ranks, put ``gradgate check`` in front of the command.

    Raises:
        OptionError: a rule does not exist, or ``raise_on`` or ``output`` is invalid.
        FindingError: raised by ``train`` for findings that ``raise_on`` selects.

    Example:
        >>> watching = WatchGradientsCallback(ignore="GG405", raise_on="error")
        >>> watching.report is None  # until Trainer(..., callbacks=[watching]).train()
        True
    """

    _training: _Training | None = None

    @property
    def report(self) -> Report | None:
        """The report of the current or last training; None before the first training."""
        if self._training is not None:
            self._training.look()
        return super().report

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching."""
        if self._training is not None:
            self._training.end("failed")
        self._training = _Training(self._watched, first_rank=state.is_world_process_zero)
        # The training also ends when the callback is deleted or the process ends.
        weakref.finalize(self, self._training.end, "failed")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching and report."""
        if self._training is not None:
            self._training.end("finished")


class _Training:
    """A watched call of ``Trainer.train``; detects its end even if it raises."""

    def __init__(self, watched: Watched, *, first_rank: bool) -> None:
        self._watched = watched
        self._first_rank = first_rank
        self._over = False
        self._thread = threading.get_ident()
        callers = (frame.f_locals.get("self") for frame in _outwards(sys._getframe(1)))
        self._trainer = next((weakref.ref(each) for each in callers if isinstance(each, Trainer)), None)
        watched.begin()
        # After a training that raised, the next step of any optimizer shows that it is over.
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.look())

    def look(self) -> None:
        """Stop watching if no method of the trainer is running any more."""
        if self._over or self._trainer is None:
            return
        trainer, frames = self._trainer(), _outwards(sys._current_frames().get(self._thread))
        if trainer is None or not any(frame.f_locals.get("self") is trainer for frame in frames):
            self.end("failed")

    def end(self, how: Literal["finished", "failed"]) -> None:
        """Stop watching and report, once."""
        if not self._over:
            self._over = True
            self._hook.remove()
            self._watched.end(how, first_rank=self._first_rank)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def exact(trainer: AnyTrainer, count: Callable[[Any], Any] | None = None) -> AnyTrainer:
    """Make gradient accumulation exact: the gradient of a window is the mean over all of its items.

    Changes ``trainer`` itself, a ``Trainer`` or a subclass such as TRL's ``SFTTrainer``. Each micro-batch is
    weighted by its count, and the sum is divided once, over all processes, before clipping. By default,
    ``Trainer`` leaves the division to the model, and many models don't divide, or divide by another number of
    items. Each logged loss is the mean over the items of its windows. The trainer does everything else as before.

    The data are read once, and nothing synchronizes with the device before the window ends.

    Args:
        trainer: a trainer that is not training yet. Its model returns the mean over a micro-batch if it gets no
            ``num_items_in_batch``, as models of transformers do. A ``compute_loss_func`` or an overridden
            ``compute_loss`` may also return the mean, or a sum divided by ``num_items_in_batch``, which then counts
            only the items of this micro-batch.
        count: returns the number of items in a micro-batch's inputs, ``count(inputs)``: samples, or valid tokens,
            as a number or a tensor with one element. If omitted, the count is the ``num_items_in_batch`` that
            divided the loss, or is read from the loss's graph if the graph proves it.

    Returns:
        the same trainer.

    Raises:
        OptionError: the processes train with DataParallel, FSDP or DeepSpeed rather than DDP.
        CountError: raised by ``train`` before a step: a count is missing and the graph does not prove it, or the
            loss is a sum.
        UpdateError: raised by ``train`` before a step: this version of transformers accumulates in an unknown way.

    Example:
        ``trainer = exact(Trainer(model, arguments, train_dataset=data))``, then ``trainer.train()`` as before.

    Sources:
        The derivation, with unequal counts and ranks: docs/exactness.md.
    """
    how = "DataParallel" if trainer.args.n_gpu > 1 else sharding_of(trainer.accelerator)
    if how:
        raise OptionError(
            f"exact: this trainer uses {how}, but only a single device and DDP are supported. Start the script "
            "with torchrun, one process for each GPU."
        )
    extended: Any = extend(trainer, _exact_trainer)
    advice = (
        "Pass the count: exact(trainer, count=lambda inputs: (inputs['labels'] != -100).sum()). Models that "
        "predict the next token skip the first label of each row: inputs['labels'][:, 1:]."
    )
    extended._gradgate_mean = WindowMean("transformers", advice, trainer.accelerator.num_processes)
    extended._gradgate_count = count
    trainer.pop_callback(_ExactTraining)
    trainer.add_callback(_ExactTraining(trainer))
    return trainer


class _ExactTraining(TrainerCallback):  # type: ignore[misc]  # from an optional library
    """Notifies an exact trainer when training begins and ends."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer: Any = self._trainer()
        trainer._gradgate_mean.start()  # an earlier training may have stopped within a window
        trainer._gradgate_mean.guard([trainer.optimizer])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer: Any = self._trainer()
        trainer._gradgate_mean.release()


def _exact_trainer(kind: type[Any]) -> type[Any]:
    """Return a subclass that also weights each loss, and divides gradients at the end of a window."""

    class ExactTrainer(kind):  # type: ignore[misc]
        _gradgate_mean: WindowMean
        _gradgate_count: Callable[[Any], Any] | None
        # In a training step: the loss that `compute_loss` has returned.
        _gradgate_losses: list[Tensor] | None = None

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            trainer: Any = self
            try:
                with _one_backward(self) as self._gradgate_losses:
                    loss: Tensor = super().training_step(*args, **kwargs)
            finally:
                self._gradgate_losses = None
            if not trainer.accelerator.sync_gradients:
                # Trainer adds up the losses that it logs, so the window's loss is returned once, when it ends.
                return torch.zeros_like(loss)
            divisors = {
                1,
                trainer.args.gradient_accumulation_steps,
                trainer.current_gradient_accumulation_steps,
            }
            window = self._gradgate_mean.finish(trainer.accelerator.scaler, divisors)
            return torch.full_like(loss, window.mean)

        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
            **kwargs: Any,
        ) -> Any:
            trainer: Any = self
            losses, options = self._gradgate_losses, {"return_outputs": return_outputs, **kwargs}
            if losses is None:  # in an evaluation
                return super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch, **options)
            if losses:
                raise _several("training_step calls compute_loss twice")
            mean = self._gradgate_mean
            mean.before_backward([trainer.optimizer], [trainer.model])
            count = None if self._gradgate_count is None else self._gradgate_count(inputs)
            with _on_its_own(trainer, [inputs], counted=num_items_in_batch is not None) as (items, smoothed):
                result = super().compute_loss(model, inputs, num_items_in_batch=items, **options)
            if count is None and smoothed:
                count = smoothed[-1]
            losses.append(result[0] if return_outputs else result)
            window = trainer.current_gradient_accumulation_steps
            mean.add(losses[0], count, micro_batches=window, passed=items)
            return result

    return ExactTrainer


@contextmanager
def _one_backward(trainer: Any) -> Iterator[list[Tensor]]:
    """Raise if ``training_step`` makes a backward pass from anything but the loss of ``compute_loss``.

    Yields:
        an empty list, to which ``compute_loss`` adds its loss.
    """
    accelerator = trainer.accelerator
    backward, before = accelerator.backward, vars(accelerator).get("backward")
    losses: list[Tensor] = []
    called = False

    def checked(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal called
        if called:
            raise _several("training_step calls accelerator.backward twice")
        called = True
        if losses and not _is_multiple(loss, losses[0]):
            raise _several("training_step adds terms to the loss after compute_loss has returned it")
        with on_purpose():
            backward(loss, *args, **kwargs)
        trainer._gradgate_mean.after_backward()

    accelerator.backward = checked
    try:
        yield losses
    finally:
        del accelerator.backward
        if before is not None:
            accelerator.backward = before


def _is_multiple(loss: Tensor, computed: Tensor) -> bool:
    """Return whether a loss is computed from ``computed`` alone."""
    node = loss.grad_fn
    while node is not None and node is not computed.grad_fn:
        node = only_input(node)
    return node is not None


def _several(what: str) -> UpdateError:
    return UpdateError(
        f"transformers: {what}, but each micro-batch has one loss and one count. No step was made. Return the sum "
        "of all terms from compute_loss, or use a gg.Accumulator in a loop of your own."
    )


@contextmanager
def _on_its_own(trainer: Any, batches: list[Any], *, counted: bool) -> Iterator[tuple[Any, list[Tensor]]]:
    """Make models and losses treat a micro-batch as the whole window of a single rank.

    Yields:
        the number of items to pass to the loss, if ``counted``; and the counts of the losses that the label
        smoother computes in the block. The graphs of these losses do not show their counts.
    """
    smoother, counts = trainer.label_smoother, []
    before = trainer.args.average_tokens_across_devices, trainer.model_accepts_loss_kwargs

    def smooth(
        outputs: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        valid = labels[..., 1:] if shift_labels else labels
        counts.append(valid.ne(smoother.ignore_index).sum())
        return smoother(outputs, labels, shift_labels=shift_labels)

    try:
        trainer.args.average_tokens_across_devices = False
        items = trainer._get_num_items_in_batch(batches, trainer.args.device) if counted else None
        trainer.model_accepts_loss_kwargs = False
        if smoother is not None:
            trainer.label_smoother = smooth
        yield items, counts
    finally:
        trainer.label_smoother = smoother
        trainer.args.average_tokens_across_devices, trainer.model_accepts_loss_kwargs = before
