"""The accumulator: adds up windows of micro-batches and makes one exact update of each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradgate.accumulation._batch_norm import BatchNorms, Statistics
from gradgate.accumulation._counts import Reduction
from gradgate.accumulation._open_window import TrainingState, refuse_steps_inside, register
from gradgate.accumulation._precision import keep_loaded_state_wide
from gradgate.accumulation._replay import LossFunction, run_batch, run_given
from gradgate.accumulation._settings import (
    Clear,
    Model,
    Models,
    Nonfinite,
    UpdateSettings,
    as_optimizers,
    as_schedulers,
    in_use,
)
from gradgate.accumulation._state_dict import Checkpointed
from gradgate.accumulation._update import Update, check_window
from gradgate.accumulation._windows import Dealt, SplitPlan
from gradgate.batch_layout import UNSAID, BatchDim, Unsaid
from gradgate.errors import OptionError, UpdateError
from gradgate.ranks import RankSetup, RanksOption, Sync
from gradgate.torch_compat import tensor_version


class Accumulator(Checkpointed):
    """Makes the exact update of a whole batch out of micro-batches.

    Each micro-batch adds a sum and a count; the division happens once, when the window ends. So the
    update does not depend on how the batch was split, and counts need not be known beforehand. The
    accumulator owns the parameters of its optimizers: an update fills their ``.grad`` and no other.

    Args:
        optimizer: a torch optimizer, or several that step together (Muon for matrices beside AdamW for the rest).
            Parameter groups that are added later belong to the next window.
        model: the module that the loop calls, its wrapper (DistributedDataParallel, ``fully_shard``) included, or
            several. A window needs it for what parameters do not tell: wrappers to hold back, batch norms, buffers
            to restore before a replay, names for messages. One process may leave it out; several ranks may not.
        clip_norm: clip the whole mean gradient, once, to this 2-norm.
        clip_value: or clip each of its entries to ``[-clip_value, clip_value]``.
        scheduler: a learning-rate scheduler, or several; stepped once per update that was made.
        scaler: a ``torch.amp.GradScaler``; the accumulator scales, unscales, steps and updates it.
        nonfinite: what to do when the gradient is infinite or not a number: "raise" (the default),
            "skip" the update (the default with a scaler), or "step" all the same, which saves a
            synchronization with the device.
        clear: what becomes of gradients after a step: "none" drops them, "zero" keeps the tensors and
            fills them with zeros, ``gradgate.decay(factor)`` carries a part into the next update.
        accumulate_dtype: the type that gradients are added up in. By default float32 for bfloat16 and float16
            parameters, which costs 4 bytes for each, and the parameter's own type otherwise. torch's optimizers
            then receive the wide gradient; fused ones and those of other libraries receive it rounded once.
        batch_norm: "micro_batch" leaves batch norms as torch runs them and warns once where they make a
            split inexact; "window" moves their running statistics once per window, by all its samples.
        undo_step: keep a copy of parameters and optimizer state during ``optimizer.step`` so that even a
            step that raises half-way is undone. Without it such a step raises :class:`TornStepError`.
        ranks: the ranks that train together. By default all processes of ``torch.distributed``, where there are
            several: under DistributedDataParallel or with parameters that are the same everywhere. A process group
            or a mesh of one dimension for some of them; False for this process alone.
        sync: when gradients are all-reduced. "last": once for a window; with ``fully_shard`` also at "every"
            micro-batch, which takes the least memory. "overlap": during the last backward pass, in which case
            ``update.micro_batches(...)`` has to be used, with one loss for each. The update is the same.

    Raises:
        OptionError: an option is out of range or excludes another; an optimizer needs a closure (LBFGS).

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([0.0]))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> accumulator = Accumulator(optimizer)
        >>> with accumulator.update() as update:
        ...     for items in update.micro_batches([torch.tensor([2.0, 4.0]), torch.tensor([9.0])]):
        ...         update.backward((weight * items).mean(), count=len(items))
        >>> weight.item()  # minus 15 / 3; the mean of the means 3 and 9 would be 6
        -5.0
        >>> update.count, update.grad_norm
        (3, 5.0)

    Sources:
        The derivation, with unequal counts: docs/exactness.md.
    """

    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        model: Model | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: Any = None,
        scaler: GradScaler | None = None,
        nonfinite: Nonfinite | None = None,
        clear: Clear = "none",
        accumulate_dtype: torch.dtype | None = None,
        batch_norm: Statistics = "micro_batch",
        undo_step: bool = False,
        ranks: RanksOption = None,
        sync: Sync = "last",
    ) -> None:
        tensor_version.require()  # by which a window sees that its sums were written to from elsewhere
        optimizers = as_optimizers(optimizer)
        self._models = Models(model, "Accumulator")
        in_use.add(self._models)
        self._settings = UpdateSettings(
            optimizers=optimizers,
            models=self._models,
            accumulate_dtype=accumulate_dtype,
            scaler=scaler,
            clip_norm=clip_norm,
            clip_value=clip_value,
            nonfinite=nonfinite,
            undo_step=undo_step,
            schedulers=as_schedulers(scheduler),
            clear=clear,
        )
        self._state = TrainingState(
            self._settings, RankSetup(ranks, sync), BatchNorms(batch_norm, self._models)
        )
        for each in optimizers:
            refusal = refuse_steps_inside(each, self._state)
            for handle in (*refusal, *(keep_loaded_state_wide(each, accumulate_dtype) if refusal else ())):
                weakref.finalize(self._state, handle.remove)  # an update may outlive the accumulator

    def __repr__(self) -> str:
        sizes = [parameter.numel() for parameter in self._settings.parameters]
        kinds = ", ".join(type(optimizer).__name__ for optimizer in self._settings.optimizers)
        return f"Accumulator({kinds}, tensors={len(sizes)}, parameters={sum(sizes):,})"

    @property
    def samples_that_fit(self) -> int | None:
        """The most samples in a micro-batch that :meth:`step` found to fit; None while all did."""
        return self._state.samples_that_fit

    @samples_that_fit.setter
    def samples_that_fit(self, samples: int | None) -> None:
        self._state.samples_that_fit = samples

    @property
    def model(self) -> Model | None:
        """The model as it was given. Set it to the new wrapper if the model is wrapped again.

        Raises:
            OptionError: on setting: something else than modules.
            UpdateError: on setting: an update is open.
        """
        return self._models.given

    @model.setter
    def model(self, model: Model | None) -> None:
        if self._state.open_update is not None:
            raise UpdateError("model: an update is open. Set it before the block or after it.")
        self._models.replace(model)

    def update(self) -> Update:
        """Open a window: ``with accumulator.update() as update: ...``. See :class:`Update`.

        Raises:
            GradientError: on entering, where an owned parameter already holds a gradient from elsewhere.
            OwnerError: on entering, where an update that is still open owns one of the parameters.
            RankError: on entering, where ranks do not train the same; on leaving, where another one stopped.
            CountError, GraphError, NonfiniteError: on leaving, where there is no gradient to step on.
        """
        return Update(self._state)

    def step(
        self,
        loss_fn: LossFunction,
        batch: Any,
        *,
        plan: SplitPlan | None = None,
        deal: Dealt | None = None,
        reduction: Reduction = "mean",
        batch_dim: BatchDim | Unsaid = UNSAID,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Update:
        """Make one update of one batch: whole, or as a plan splits it; split and replayed if memory runs out.

        Out of memory in a forward or backward pass: the window is rolled back, with what the pass has changed in
        ``model`` (parameters that no optimizer here owns, buffers, other tensors, numbers and containers in
        attributes, modules made meanwhile) and in the random state of torch, Python and numpy. The batch is split
        into micro-batches of at most half the size that failed, and the window runs again. The update is the same.
        The size that fits is kept for the next windows (:attr:`samples_that_fit`); a plan keeps it itself.

        Args:
            loss_fn: takes a micro-batch, returns its loss, or the loss and its count. Called again on a replay:
                what it changes beside the model and random state (globals, a loader's place) changes twice.
            batch: one batch, a pytree of tensors, numpy arrays and lists with the samples along dimension 0
                (docs/plan.md has the rule). Micro-batches that exist already go to :meth:`step_window`.
            plan: how to split, from :func:`gradgate.plan`.
            deal: over several ranks, with ``plan``: samples are distributed so that ranks finish together, equal
                lengths to different ranks. "whole": every rank brings the same whole batch; "parts": each brings
                a part, as DistributedSampler gives it, and these are joined first. None: each keeps its own.
            reduction: "mean" or "sum": what the loss is, over its items.
            batch_dim: where the samples are, if not along dimension 0; as :func:`gradgate.plan` takes it.
            collate: makes what ``loss_fn`` takes of some raw samples; ``batch`` is a list of these.

        Returns:
            the update, closed, for logging.

        Raises:
            BudgetError: memory ran out, and one sample alone does not fit, the batch cannot be split, or the
                accumulator was made without ``model``.
            CountError: ``loss_fn`` returns no count, and the graph does not tell it.
            OptionError: ``batch`` looks like several; ``loss_fn`` returns something else; ``deal`` comes without a
                plan, or ``batch_dim`` or ``collate`` with one.
            Exception: whatever ``loss_fn`` and :meth:`update` raise.

        Example:
            >>> model = torch.nn.Linear(3, 1)
            >>> accumulator = Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
            >>> update = accumulator.step(lambda x: model(x).pow(2).mean(), torch.ones(4, 3))
            >>> update.count, update.micro_batch_count
            (4, 1)
        """
        return run_batch(self._state, loss_fn, batch, plan, deal, reduction, batch_dim, collate)

    def step_window(
        self,
        loss_fn: LossFunction,
        window: Iterable[Any],
        *,
        reduction: Reduction = "mean",
        batch_dim: BatchDim | Unsaid = UNSAID,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Update:
        """Make one update of a list of micro-batches; if memory runs out, split them and replay, as :meth:`step`.

        Args:
            loss_fn: takes a micro-batch, returns its loss, or the loss and its count.
            window: the micro-batches: a list, a window of :func:`windows`, any iterable of batches.
            reduction: "mean" or "sum": what the loss is, over its items.
            batch_dim: where a micro-batch holds its samples, if not along dimension 0.
            collate: makes what ``loss_fn`` takes of some raw samples; each micro-batch is a list of these.

        Returns:
            the update, closed, for logging.

        Raises:
            OptionError: ``window`` is one batch.
            Exception: as :meth:`step`.

        Example:
            >>> model = torch.nn.Linear(3, 1)
            >>> accumulator = Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
            >>> window = [torch.ones(4, 3), torch.ones(1, 3)]
            >>> update = accumulator.step_window(lambda x: model(x).pow(2).mean(), window)
            >>> update.count, update.micro_batch_count
            (5, 2)
        """
        check_window(window, "step_window")
        return run_given(self._state, loss_fn, list(window), reduction, batch_dim, collate)

    def register_update_hook(self, hook: Callable[[Update], object]) -> RemovableHandle:
        """Have a function called at the end of each update, the skipped ones included.

        It is called with the :class:`Update` when all is done: stepped, cleared, scheduled. It is not called where
        the block raised. What the function raises comes out of the block; the update stays made.

        Args:
            hook: called with the update, after those that were registered before it.

        Returns:
            a handle, whose ``remove()`` removes the hook.

        Raises:
            OptionError: ``hook`` cannot be called.

        Example:
            >>> weight = torch.nn.Parameter(torch.ones(1))
            >>> accumulator = Accumulator(torch.optim.SGD([weight], lr=0.5))
            >>> handle = accumulator.register_update_hook(lambda update: print(update.grad_norm, weight.item()))
            >>> with accumulator.update() as update:
            ...     update.backward(weight.sum(), count=1)
            1.0 0.5
            >>> handle.remove()
        """
        if not callable(hook):
            raise OptionError(
                f"register_update_hook: {type(hook).__name__} cannot be called. Pass a function of the update."
            )
        return register(self._state.update_hooks, hook)

    def discard(self) -> None:
        """Give up a window: one that an interrupt left open, or an unfinished one that was loaded.

        ``.grad`` is put back as it was before the window. Does nothing where there is none.
        """
        if self._state.open_update is not None:
            self._state.open_update._give_up()
        self._state.unfinished = None
