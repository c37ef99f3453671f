"""The accumulator, which makes one exact update from each window of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradgate.accumulation._calls import check_window
from gradgate.accumulation._checkpoint import load_state, state_of
from gradgate.accumulation._counts import Reduction
from gradgate.accumulation._loss_checks import BatchNorms
from gradgate.accumulation._replay import Dealt, LossFunction, run_batch, run_coupled, run_given
from gradgate.accumulation._settings import (
    Clear,
    Model,
    Models,
    Nonfinite,
    UpdateSettings,
    as_optimizers,
    as_schedulers,
)
from gradgate.accumulation._window import TrainingState, Update, register, watch_optimizers
from gradgate.batch_layout import NOT_GIVEN, BatchDim, NotGiven
from gradgate.batch_size import NoiseScale, claim_noise_scale
from gradgate.coupled import Encode
from gradgate.errors import OptionError, UpdateError
from gradgate.options import check_function
from gradgate.ranks import RankSetup, RanksOption, Sync
from gradgate.torch_compat import tensor_version


class Accumulator:
    """Makes the exact update of a whole batch from micro-batches.

    Each micro-batch adds a gradient sum and a count. The sum is divided once, when the window ends. The update
    therefore does not depend on how the batch was split, and counts need not be known in advance. docs/exactness.md
    has the derivation. The accumulator owns the parameters of its optimizers: it fills only their ``.grad``.

    Most loops need the first options, up to ``clear``, at most.

    Args:
        optimizer: a torch optimizer, or several that step together. Groups added later are trained from the next
            window on.
        model: the module that the loop calls, including its wrapper (DistributedDataParallel, ``fully_shard``), or
            several modules. Used to delay the all-reduce, find batch norms, restore buffers before a replay, and
            name parameters in messages. Optional in a single process, required with several ranks.
        clip_norm: clip the 2-norm of the mean gradient, over all parameters, to this value.
        scheduler: a learning-rate scheduler, or several; stepped after each update that was not skipped.
        scaler: a ``torch.amp.GradScaler``; the accumulator makes all calls to it.
        clear: what happens to gradients after a step: "none" drops them, "zero" fills them with zeros, and
            ``gradgate.decay(factor)`` carries a fraction of them into the next update.
        nonfinite: what to do when the gradient is infinite or NaN: "raise" (the default), "skip" the update (the
            default with a scaler), or "step" anyway, which saves a synchronization with the device.
        clip_value: clip each entry of the mean gradient to ``[-clip_value, clip_value]`` instead.
        undo_step: keep a copy of parameters and optimizer state during ``optimizer.step``, so that a step that
            raises halfway can be undone. Without the copy, such a step raises :class:`TornStepError`.
        noise_scale: estimates the useful batch size; see :class:`gradgate.NoiseScale`.
        ranks: the ranks that train together. By default the processes over which a wrapper of the model reduces
            gradients; without a wrapper, all processes of ``torch.distributed``, or those of a process group or
            1-d device mesh. False means this process alone.
        sync: when ``fully_shard`` reduces gradients over ranks. "last": once per window. "every": after each
            micro-batch, which needs the least memory. Both give the same update.

    Raises:
        OptionError: an option is out of range or excludes another; an optimizer needs a closure (LBFGS); a
            scheduler belongs to another optimizer; the model has no parameter of the optimizers.

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
    """

    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        model: Model | None = None,
        clip_norm: float | None = None,
        scheduler: Any = None,
        scaler: GradScaler | None = None,
        clear: Clear = "none",
        nonfinite: Nonfinite | None = None,
        clip_value: float | None = None,
        undo_step: bool = False,
        noise_scale: NoiseScale | None = None,
        ranks: RanksOption = None,
        sync: Sync = "last",
    ) -> None:
        tensor_version.require()  # needed to detect when other code writes to a window's sums
        optimizers = as_optimizers(optimizer)
        self._models = Models(model, "Accumulator")
        self._models.check_shared(optimizers)
        self._settings = UpdateSettings(
            optimizers=optimizers,
            models=self._models,
            scaler=scaler,
            clip_norm=clip_norm,
            clip_value=clip_value,
            nonfinite=nonfinite,
            undo_step=undo_step,
            schedulers=as_schedulers(scheduler, optimizers),
            clear=clear,
        )
        self._state = TrainingState(
            self._settings,
            RankSetup(ranks, sync),
            BatchNorms(self._models),
            noise_scale,
        )
        claim_noise_scale(noise_scale, self._state)
        watch_optimizers(self._state)

    if not TYPE_CHECKING:  # to a type checker, every attribute would exist

        def __getattr__(self, name: str) -> NoReturn:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(Update, name):
                text += f". An update has it: `with accumulator.update() as update:`, then update.{name}"
            raise AttributeError(text)

        def __enter__(self) -> NoReturn:
            raise UpdateError(
                "Accumulator: `with accumulator:` opens no window. For each update, write "
                "`with accumulator.update() as update:`."
            )

        def __exit__(self, *error: object) -> None:
            """Exists so that ``with accumulator:`` gets as far as ``__enter__``."""

    def __reduce__(self) -> NoReturn:
        raise UpdateError(
            "Accumulator: an accumulator cannot be copied or pickled. Copy the model and its optimizers together, "
            "and create an accumulator from the copies. To save a run, save accumulator.state_dict()."
        )

    def __repr__(self) -> str:
        sizes = [parameter.numel() for parameter in self._settings.parameters]
        kinds = ", ".join(type(optimizer).__name__ for optimizer in self._settings.optimizers)
        return f"Accumulator({kinds}: {len(sizes)} tensor{'s' * (len(sizes) > 1)}, {sum(sizes):,} parameters)"

    @property
    def samples_that_fit(self) -> int | None:
        """The most samples known to fit in a micro-batch. None unless :meth:`step` has run out of memory."""
        return self._state.samples_that_fit

    @samples_that_fit.setter
    def samples_that_fit(self, samples: int | None) -> None:
        self._state.samples_that_fit = samples

    @property
    def model(self) -> Model | None:
        """The model as passed. If you wrap the model again, set this to the new wrapper.

        Raises:
            OptionError: on setting, if the value holds anything other than modules.
            UpdateError: on setting, if an update is open.
        """
        return self._models.given

    @model.setter
    def model(self, model: Model | None) -> None:
        if self._state.open_update is not None:
            raise UpdateError("model: an update is open. Set the model before or after the block.")
        self._models.replace(model)

    def update(self) -> Update:
        """Open a window: ``with accumulator.update() as update: ...``. See :class:`Update`.

        Raises:
            GradientError: on entering, if an owned parameter already holds a gradient from other code.
            OwnerError: on entering, if another open update owns one of the parameters.
            RankError: on entering, if ranks train different parameters; on leaving, if another rank stopped.
            CountError, GraphError, NonfiniteError: on leaving, if there is no gradient to step on.
        """
        return Update(self._state)

    def step(
        self,
        loss_fn: LossFunction,
        batch: Any,
        *,
        plan: Any = None,
        deal: Dealt | None = None,
        reduction: Reduction = "mean",
        batch_dim: BatchDim | NotGiven = NOT_GIVEN,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Update:
        """Make one update from one batch. If memory runs out, split the batch further and replay the window.

        If a forward or backward pass runs out of memory, the window is rolled back. This restores the random state
        of torch, Python and numpy. In ``model``, it restores buffers, submodules, parameters that no optimizer here
        owns, and the tensors, numbers and containers in attributes. The batch is then split into micro-batches of
        at most half the size that failed, and the window runs again, with the same result. Later windows use the
        size that fits (:attr:`samples_that_fit`).

        Args:
            loss_fn: takes a micro-batch and returns its loss, or the loss and its count. A replay calls it again
                and so repeats any change that it makes outside the model and the random state (globals, a loader's
                position).
            batch: one batch: a pytree of tensors, numpy arrays and lists with the samples along dimension 0
                (details: docs/plan.md). If you already have micro-batches, use :meth:`step_window`.
            plan: how to split the batch, from :func:`gradgate.plan`. Without a plan, the batch is not split.
            deal: with several ranks and a ``plan``, "whole" distributes a batch, which every rank passes whole, so
                that ranks finish together. None: each rank passes its own samples.
            reduction: whether the loss is a "mean" or a "sum" over its items.
            batch_dim: the dimension of the samples, if it is not 0, or None for data that all samples share; see
                :func:`gradgate.plan`. If memory runs out, this is asked for before the first replay where a tensor
                may be either: class weights, ``pos_weight``, or a mask ``[T, T]`` as long as the batch.
            collate: turns a list of raw samples into the input of ``loss_fn``. ``batch`` is then a list of samples.

        Returns:
            the update, closed, for logging.

        Raises:
            BudgetError: one sample does not fit, the batch cannot be split, it is unclear which tensors all samples
                share, or there is no ``model`` to restore.
            CountError: ``loss_fn`` returns no count, and none can be read from the graph.
            OptionError: ``batch`` looks like several batches; ``loss_fn`` is not a function, or returns something
                other than a loss, or a loss and its count; ``deal`` is passed without a plan, or ``batch_dim`` or
                ``collate`` with a plan.
            Exception: any that ``loss_fn`` or :meth:`update` raises.

        Example:
            >>> model = torch.nn.Linear(3, 1)
            >>> accumulator = Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
            >>> update = accumulator.step(lambda x: model(x).pow(2).mean(), torch.ones(4, 3))
            >>> update.count, update.micro_batch_count
            (4, 1)
        """
        check_function("step", "loss_fn", loss_fn, "accumulator.step(loss_fn, batch)")
        return run_batch(self._state, loss_fn, batch, plan, deal, reduction, batch_dim, collate)

    def step_window(
        self,
        loss_fn: LossFunction,
        window: Iterable[Any],
        *,
        reduction: Reduction = "mean",
        batch_dim: BatchDim | NotGiven = NOT_GIVEN,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Update:
        """Make one update from micro-batches. If memory runs out, split them and replay, as :meth:`step` does.

        Args:
            loss_fn: takes a micro-batch and returns its loss, or the loss and its count.
            window: the micro-batches: a list, a window from :func:`windows`, or another iterable of batches.
                All are drawn before the first forward pass, so a loader must not refill one buffer.
            reduction: whether the loss is a "mean" or a "sum" over its items.
            batch_dim: the dimension of the samples in a micro-batch, if it is not 0.
            collate: turns a list of raw samples into the input of ``loss_fn``. Micro-batches are then such lists.

        Returns:
            the update, closed, for logging.

        Raises:
            OptionError: ``window`` is one batch.
            Exception: the same as for :meth:`step`.

        Example:
            >>> model = torch.nn.Linear(3, 1)
            >>> accumulator = Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
            >>> window = [torch.ones(4, 3), torch.ones(1, 3)]
            >>> update = accumulator.step_window(lambda x: model(x).pow(2).mean(), window)
            >>> update.count, update.micro_batch_count
            (5, 2)
        """
        check_function("step_window", "loss_fn", loss_fn, "accumulator.step_window(loss_fn, window)")
        check_window(window, "step_window")
        return run_given(self._state, loss_fn, list(window), reduction, batch_dim, collate)

    def step_coupled(
        self,
        encode: Encode,
        window: Iterable[Any],
        loss_fn: Callable[[Any], Tensor],
        *,
        batch_dim: BatchDim | NotGiven = NOT_GIVEN,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Update:
        """Make one update from a loss over a whole window. If memory runs out, split micro-batches and replay.

        Opens a window and calls :meth:`Update.backward_coupled`. If memory runs out, it rolls back, splits and
        replays as :meth:`Accumulator.step` does. The update is the same.

        Args:
            encode: takes a micro-batch and returns its representations.
            window: the micro-batches: a list, or a window from :func:`windows`. To split a single batch, use a
                plan: ``[micro.data for micro in plan.split(batch)]``.
            loss_fn: takes the representations of the whole window and returns their loss.
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
        call = "accumulator.step_coupled(encode, window, loss_fn)"
        check_function("step_coupled", "encode", encode, call)
        check_function("step_coupled", "loss_fn", loss_fn, call)
        check_window(window, "step_coupled")
        return run_coupled(self._state, encode, list(window), loss_fn, batch_dim, collate)

    def register_update_hook(self, hook: Callable[[Update], object]) -> RemovableHandle:
        """Register a function to be called at the end of each update, including skipped ones.

        The hook runs after the optimizer step, the clearing of gradients, and the scheduler step. It does not run
        if the block raises. If the hook raises, the exception propagates out of the block, but the update has
        already been made.

        Args:
            hook: called with the update, after previously registered hooks.

        Returns:
            a handle, whose ``remove()`` removes the hook.

        Raises:
            OptionError: ``hook`` is not callable.

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
                f"register_update_hook: {type(hook).__name__} is not callable. Pass a function that takes the "
                "update."
            )
        return register(self._state.update_hooks, hook)

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume, including an unfinished window.

        Tensors are copies. The state holds only tensors, numbers, strings and containers, so that
        ``torch.load(..., weights_only=True)`` reads it. It does not include the model, optimizer, scheduler, scaler
        and random state; save these separately. Inside a window, call this after the last backward of a
        micro-batch; with several ranks, each rank then saves its own part of the window.

        Raises:
            StateError: under ``fully_shard``, a window is unfinished.
        """
        return state_of(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. If it has an unfinished window, the next update continues it.

        Create the accumulator before calling ``optimizer.load_state_dict(...)``: torch would round the loaded
        moments of 16-bit parameters, and the accumulator prevents that. Give the next update the same
        micro-batches; it skips those already in the sum. The resulting parameters are then, bit for bit, those of
        an uninterrupted run.

        Raises:
            StateError: the state belongs to other parameters or another version, or its unfinished window to
                another rank or number of ranks; nothing is changed.
            UpdateError: an update is open.
            GradientError: decayed gradients would overwrite existing gradients.
        """
        if self._state.open_update is not None:
            raise UpdateError("load_state_dict: an update is open. Load before the block or after it.")
        load_state(self._state, state)

    def discard(self) -> None:
        """Discard a window that an interrupt left open, or one that was loaded from a checkpoint.

        Restores ``.grad`` to its state before the window. Does nothing if there is no such window.
        """
        if self._state.open_update is not None:
            self._state.open_update._roll_back()
        self._state.unfinished = None
