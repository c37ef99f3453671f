"""Logs each update as scalars, to TensorBoard or any writer with ``add_scalar``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradgate.accumulation import Accumulator, Update, dense_values, total_norm
from gradgate.errors import OptionError
from gradgate.torch_compat import foreach_norm, is_dtensor


class Writer(Protocol):
    """Accepts scalars, as ``torch.utils.tensorboard.SummaryWriter`` does."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write a scalar."""


def log_to(
    writer: Writer,
    accumulator: Accumulator,
    model: nn.Module | None = None,
    *,
    every: int = 1,
    depth: int = 1,
    step: int = 0,
) -> Logging:
    """Write each update of an accumulator to TensorBoard.

    ========================= ===========================================================================
    tag                       what it is
    ========================= ===========================================================================
    gradgate/loss             the mean loss of the update
    gradgate/count            the number of items in the update
    gradgate/grad_norm        the 2-norm of the mean gradient, before any clip
    gradgate/noise_scale      with ``noise_scale=``: the gradient noise scale, in items
    gradgate/grad_norm/<name> the same norm for each part of ``model``, before any clip
    gradgate/clipped          with a clip: the fraction of clipped updates since the last write
    gradgate/skipped          the number of updates skipped so far because a gradient was not finite
    gradgate/lr               the learning rate; ``gradgate/lr/<number>`` if there are several groups
    ========================= ===========================================================================

    A skipped update has no norms of parts. Values are read from the device only when they are written: with
    ``every=100``, one update in a hundred synchronizes with the device.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``, or any object with its ``add_scalar``. With
            several ranks, call this on one of them: the values cover all ranks.
        accumulator: the accumulator whose updates are written.
        model: log a separate gradient norm for each part of this model, over the parameters that the
            accumulator owns.
        every: write every update whose number is a multiple of this.
        depth: the number of components of a parameter's path that name its part: 1 for "encoder", 2 for
            "encoder.layers".
        step: the number of the last update of an earlier run, to continue its numbering.

    Returns:
        a handle: ``remove()`` stops the logging. As a context manager, it stops at the end of the block. The
            writer stays open.

    Raises:
        OptionError: an option is out of range, the accumulator owns nothing of ``model``, or ``model`` is
            given and its parameters are sharded over ranks.

    Example:
        >>> class Prints:
        ...     def add_scalar(self, tag, value, step):
        ...         print(step, tag, value)
        >>> weight = torch.nn.Parameter(torch.tensor([3.0]))
        >>> accumulator = Accumulator(torch.optim.SGD([weight], lr=0.5), clip_norm=1.0)
        >>> with log_to(Prints(), accumulator), accumulator.update() as update:
        ...     update.backward((weight * torch.tensor([1.0, 3.0])).mean(), count=2)
        1 gradgate/loss 6.0
        1 gradgate/count 2
        1 gradgate/grad_norm 2.0
        1 gradgate/clipped 1.0
        1 gradgate/skipped 0
        1 gradgate/lr 0.5
    """
    if not callable(getattr(writer, "add_scalar", None)):
        raise OptionError(
            f"log_to: {type(writer).__name__} has no add_scalar. Pass a torch.utils.tensorboard.SummaryWriter."
        )
    for name, number in (("every", every), ("depth", depth)):
        if number < 1:
            raise OptionError(f"log_to: {name} is {number}; it must be at least 1.")
    parts = {} if model is None else _parts(model, accumulator, depth)
    return Logging(writer, accumulator, parts, every, step)


def _parts(model: nn.Module, accumulator: Accumulator, depth: int) -> dict[str, list[Tensor]]:
    """Return the owned parameters of each part of a model."""
    owned = {id(parameter) for parameter in accumulator._settings.parameters}
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for path, parameter in model.named_parameters():
        if id(parameter) in owned:
            names = path.split(".")[:-1][:depth]
            parts[".".join(names) or type(model).__name__].append(parameter)
    if not parts:
        raise OptionError(
            f"log_to: the accumulator owns no parameter of this {type(model).__name__}. Pass the model that it "
            "trains."
        )
    if any(is_dtensor(parameter) for several in parts.values() for parameter in several):
        raise OptionError(
            "log_to: the model's parameters are sharded over ranks, and each rank knows the norms of its own "
            "shards only. Leave model out; gradgate/grad_norm covers all parameters."
        )
    return dict(parts)


class Logging:
    """Writes an accumulator's updates, until it is removed. Made by :func:`log_to`."""

    def __init__(
        self,
        writer: Writer,
        accumulator: Accumulator,
        parts: dict[str, list[Tensor]],
        every: int,
        step: int,
    ) -> None:
        self._writer = writer
        self._settings = accumulator._settings
        self._noise_scale = accumulator._state.noise_scale
        self._parts = parts
        self._every = every
        self._step = step
        self._skipped = self._since = 0
        self._clipped: int | Tensor = 0  # clipped updates since the last write
        self._norms: dict[str, float | Tensor] = {}
        self._rates: list[Any] = []
        self._handles = (
            register(accumulator._state.gradient_hooks, self._look_at_gradient),
            accumulator.register_update_hook(self._write),
        )

    def __repr__(self) -> str:
        every = "every update" if self._every == 1 else f"every {self._every} updates"
        return f"Logging({every} to {type(self._writer).__name__}, {self._step:,} so far)"

    def remove(self) -> None:
        """Stop writing."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Logging:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _look_at_gradient(self, update: Update, values: Sequence[Tensor], factor: float) -> None:
        """Record norms before the gradient is clipped, used and cleared. Does not synchronize."""
        settings = self._settings
        if settings.clip_norm is not None and update._norm is not None:
            self._clipped = self._clipped + (update._norm + 1e-6 > settings.clip_norm)
        if settings.clip_value is not None:
            largest = [norm.to(values[0].device) for norm in foreach_norm(list(values), float("inf"))]
            self._clipped = self._clipped + (torch.stack(largest).max() * abs(factor) > settings.clip_value)
        if (self._step + 1) % self._every:
            return
        self._rates = self._rates_now()
        for name, parameters in self._parts.items():
            held = dense_values(parameters)
            self._norms[name] = total_norm(held) * factor if held else 0.0

    def _write(self, update: Update) -> None:
        self._step += 1
        self._since += 1
        self._skipped += not update.stepped
        if self._step % self._every:
            return
        for tag, value in self._scalars(update):
            self._writer.add_scalar(f"gradgate/{tag}", value, self._step)
        self._since = self._clipped = 0
        self._norms, self._rates = {}, []

    def _scalars(self, update: Update) -> Iterator[tuple[str, float]]:
        """Yield the scalars to write. Synchronizes with the device."""
        yield "loss", update.loss
        yield "count", update.count
        yield "grad_norm", update.grad_norm
        if self._noise_scale is not None and self._noise_scale.value is not None:
            yield "noise_scale", self._noise_scale.value
        for name, norm in self._norms.items():
            yield f"grad_norm/{name}", float(norm)
        if self._settings.clip_norm is not None or self._settings.clip_value is not None:
            yield "clipped", float(self._clipped) / self._since
        yield "skipped", self._skipped
        rates = [float(rate) for rate in self._rates or self._rates_now()]  # a skipped update has no step
        for number, rate in enumerate(rates):
            yield "lr" if len(rates) == 1 else f"lr/{number}", rate

    def _rates_now(self) -> list[Any]:
        """Return copies of the rates of all groups, since a schedule may change a tensor in place."""
        groups = [group for optimizer in self._settings.optimizers for group in optimizer.param_groups]
        return [rate.clone() if isinstance(rate := group["lr"], Tensor) else rate for group in groups]
