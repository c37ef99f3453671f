"""Makes accumulation in Lightning's ``Trainer.fit`` exact, and watches the gradients of a fit.

Works with ``lightning`` and ``pytorch_lightning``: the package that the script has imported, otherwise the
installed one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gradgate.errors import OptionError
from gradgate.events import on_purpose
from gradgate.integrations._trainers import extend, restore
from gradgate.integrations._watched import WatchingCallback
from gradgate.integrations._window_mean import WindowMean

# `pip install lightning` installs both, and each accepts callbacks of the other. Importing both takes seconds.
if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback
else:
    from pytorch_lightning.callbacks import Callback

__all__ = ["ExactAccumulation", "WatchGradients"]


class WatchGradients(WatchingCallback, Callback):  # type: ignore[misc]  # from an optional library
    """Watch a fit from start to end and report what is wrong with its gradients.

    A callback for ``Trainer(callbacks=[...])``. It does not change the computation. If the fit raises, the report
    covers the time until then, and the error propagates. ``validate``, ``test`` and ``predict`` are not watched.

    Args:
        select: report only these rules: codes ("GG103"), prefixes of codes ("GG1") or categories.
        ignore: do not report these rules.
        raise_on: raise at the end of the fit if there are findings of this severity or worse.
        output: a file to write the report to, in the format of its extension: .html, .json, .sarif or .txt.
        show: print the report when the fit ends.

    With several ranks, each rank watches itself, and the first one prints and writes its own report. To get a
    report on all ranks, put ``gradgate check`` in front of the command.

    Raises:
        OptionError: a rule does not exist, or ``raise_on`` or ``output`` is invalid.
        FindingError: raised by ``fit`` for findings that ``raise_on`` selects.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> watching = WatchGradients(ignore="GG405", raise_on="error")
        >>> trainer = Trainer(callbacks=[watching], logger=False, enable_checkpointing=False)
        >>> watching.report is None  # until trainer.fit(...)
        True
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start watching, before the optimizers are created."""
        if stage == "fit":
            self._watched.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop watching and report."""
        self._watched.end("finished", first_rank=trainer.is_global_zero)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching when the fit raises, and report."""
        self._watched.end("failed", first_rank=trainer.is_global_zero)


class ExactAccumulation(Callback):  # type: ignore[misc]  # from an optional library
    """Make ``accumulate_grad_batches`` exact: the gradient of a window is the mean over all of its items.

    A callback for ``Trainer(callbacks=[...])``. Each micro-batch is weighted by its count, and the sum is divided
    once, over all ranks, before clipping. By default, Lightning divides each mean by ``accumulate_grad_batches``,
    which is right only if all micro-batches hold the same number of items and the last window of an epoch is
    full. Precision, clipping, schedulers, loggers and checkpoints stay with the trainer.

    Works with automatic optimization, on one device or under DDP. The data are read once, and nothing synchronizes
    with the device before the window ends.

    Args:
        count: returns the number of items in a batch, ``count(batch)``: samples, or valid tokens, as a number or a
            tensor with one element. If omitted, it is read from the graph of the loss that ``training_step``
            returns, where the graph proves it: for one of torch's mean losses over a layer's output.

    Raises:
        OptionError: raised by ``fit``: optimization is manual, or the strategy is not a single device or DDP.
        CountError: raised by ``fit`` before a step: a count is missing and the graph does not prove it, or the loss
            is a sum.
        UpdateError: raised by ``fit`` before a step: this version of Lightning accumulates in an unknown way.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(
        ...     accumulate_grad_batches=8, callbacks=[ExactAccumulation()], logger=False, enable_checkpointing=False
        ... )

    Sources:
        The derivation, with unequal counts and ranks: docs/exactness.md.
    """

    def __init__(self, count: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._count = count

    def __repr__(self) -> str:
        return f"ExactAccumulation(counts from the {'losses' if self._count is None else 'batches'})"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that this fit can be made exact."""
        if stage != "fit":
            return
        strategies = {kind.__name__ for kind in type(trainer.strategy).__mro__}
        if not strategies & {"SingleDeviceStrategy", "DDPStrategy"} or "DeepSpeedStrategy" in strategies:
            raise OptionError(
                f"ExactAccumulation: {type(trainer.strategy).__name__} is not supported, only a single device "
                "and DDP are. Use a gg.Accumulator in training_step (docs/lightning.md), or strategy='ddp'."
            )
        if not pl_module.automatic_optimization:
            raise OptionError(
                "ExactAccumulation: this module uses manual optimization, so training_step makes its own "
                "windows. Use a gg.Accumulator there (docs/lightning.md), or automatic optimization."
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Extend the trainer's strategy until the fit ends."""
        module = type(trainer).__module__.partition(".")[0]
        advice = "Pass the count: ExactAccumulation(count=lambda batch: len(batch[1]))."
        strategy = extend(trainer.strategy, _exact_strategy)
        strategy.gradgate_count = self._count
        strategy.gradgate_mean = WindowMean(module, advice, trainer.world_size)
        strategy.gradgate_mean.guard(trainer.optimizers)

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Begin a window where Lightning clears the gradients."""
        trainer.strategy.gradgate_mean.restart()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Record the gradients, so that later changes are noticed."""
        trainer.strategy.gradgate_mean.after_backward()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the strategy and the optimizer."""
        strategy = trainer.strategy
        if hasattr(strategy, "gradgate_mean"):
            strategy.gradgate_mean.release()
        restore(strategy)
        for name in [name for name in vars(strategy) if name.startswith("gradgate_")]:
            delattr(strategy, name)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore the strategy and the optimizer."""
        self.teardown(trainer, pl_module, "fit")


def _exact_strategy(kind: type[Any]) -> type[Any]:
    """Return a subclass that also weights each loss, and divides gradients at the end of a window."""

    class ExactStrategy(kind):  # type: ignore[misc]
        gradgate_count: Callable[[Any], Any] | None
        gradgate_mean: WindowMean
        gradgate_skipped = False

        @property
        def gradgate_window(self: Any) -> Any:
            return self.lightning_module.trainer.accumulate_grad_batches

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            output = super().training_step(*args, **kwargs)
            loss = output.get("loss") if isinstance(output, Mapping) else output
            self.gradgate_skipped = loss is None
            if isinstance(loss, Tensor) and loss.requires_grad:
                count = None if self.gradgate_count is None else self.gradgate_count(args[0])
                self.gradgate_mean.add(loss, count, micro_batches=self.gradgate_window)
            return output

        def backward(self, *args: Any, **kwargs: Any) -> Any:
            strategy: Any = self
            self.gradgate_mean.before_backward(strategy.optimizers, [strategy.lightning_module])
            with on_purpose():
                return super().backward(*args, **kwargs)

        def optimizer_step(self, optimizer: Any, closure: Any, *args: Any, **kwargs: Any) -> Any:
            def divided() -> Any:
                result = closure()
                strategy: Any = self
                if self.gradgate_mean.open or not self.gradgate_skipped:
                    scaler = getattr(strategy.precision_plugin, "scaler", None)
                    self.gradgate_mean.finish(scaler, {self.gradgate_window})
                return result

            self.gradgate_mean.divides_in_closure = True
            try:
                return super().optimizer_step(optimizer, divided, *args, **kwargs)
            finally:
                self.gradgate_mean.divides_in_closure = False

    return ExactStrategy
