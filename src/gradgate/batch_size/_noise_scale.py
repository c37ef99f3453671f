"""Estimates the gradient noise scale, the batch size beyond which larger batches pay off less."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from gradgate.errors import OptionError
from gradgate.torch_compat import is_dtensor


class SmallBatch(NamedTuple):
    """The squared norm of the mean gradient of a window's first micro-batch, and its number of items."""

    square: float
    items: float


def _pooled(batches: Sequence[SmallBatch]) -> SmallBatch:
    """Return a batch with the mean square of several batches, weighted by items, and their mean number of items.

    The expected square is ``|G|^2 + tr(Sigma) / items``, as for a single batch.
    """
    items = sum(batch.items for batch in batches)
    return SmallBatch(sum(batch.square * batch.items for batch in batches) / items, items / len(batches))


class NoiseScale:
    """Estimates the gradient noise scale during training, the batch size beyond which larger batches gain little.

    The noise scale is ``tr(Sigma) / |G|^2``, in items: the variance of one item's gradient, summed over all
    parameters, divided by the squared norm of the true gradient. In a batch of that size, noise and gradient are
    equally large. In much smaller batches noise dominates, and doubling the batch nearly halves the number of
    updates that training needs. In much larger batches, doubling saves hardly any updates.

    The estimate compares the gradient of each window's first micro-batch with that of the whole window. It changes
    no update. It computes one more norm of the gradient per window (two with ``clear=decay(...)``), which is read
    when the window ends, even with ``nonfinite="step"``. Numerator and denominator are averaged over updates before
    they are divided; each window is weighted by the number of items after its first micro-batch.

    The noise scale usually grows during training, and the formula is a simplification: read it as an order of
    magnitude. Micro-batches have to be random samples, so shuffle, and do not sort by length.

    Args:
        decay: the fraction of the averages that each update keeps, from 0 (only the last update counts) to 1 (all
            updates count equally). The averages cover about ``1 / (1 - decay)`` updates.

    Attributes:
        updates: the number of windows that contributed.
        skipped: the number of windows that could not contribute, by reason: "one micro-batch", "several losses"
            (add them if their counts are equal), "no first gradient" (a loss over the whole window, or a resumed
            window whose first micro-batch was not measured), "not finite".

    Raises:
        OptionError: ``decay`` is not from 0 to 1. Raised by the accumulator: the object belongs to another
            accumulator, or parameters are sharded over ranks.

    Example:
        >>> data = torch.tensor([[3.0], [1.0], [5.0], [3.0]])  # gradients with mean 3 and variance 2
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> noise = NoiseScale(decay=1.0)
        >>> accumulator = Accumulator(torch.optim.SGD([weight], lr=0.0), noise_scale=noise)
        >>> for _ in range(300):
        ...     with accumulator.update() as update:
        ...         for items in update.micro_batches(data[torch.randint(4, (16,))].split(4)):
        ...             update.backward((weight * items).mean(), count=4)
        >>> round(noise.gradient_square), round(noise.trace)
        (9, 2)

    Sources:
        McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", section 2.2 and appendix A.1. With
        unequal counts: docs/batch_size.md.
    """

    def __init__(self, decay: float = 0.99) -> None:
        if not 0 <= decay <= 1:
            raise OptionError(
                f"NoiseScale: decay is {decay}; it must be from 0 (the last update alone) to 1 (all updates)."
            )
        self.decay = float(decay)
        self.updates = 0
        self.skipped: dict[str, int] = {}
        self._weight = self._square = self._trace = 0.0  # the averages times their weight
        self._batch = 0.0  # items of the last window
        self._owner: weakref.ref[Any] | None = None

    @property
    def gradient_square(self) -> float | None:
        """The squared norm of the true gradient, ``|G|^2``; negative if noise hides it; None if unknown."""
        return self._square / self._weight if self._weight else None

    @property
    def trace(self) -> float | None:
        """The variance of one item's gradient, summed over parameters: ``tr(Sigma)``; None without an estimate."""
        return self._trace / self._weight if self._weight else None

    @property
    def value(self) -> float | None:
        """The noise scale in items; infinite if noise hides the gradient; None without an estimate."""
        if not self._weight:
            return None
        return max(self._trace, 0.0) / self._square if self._square > 0 else math.inf

    def advice(self, batch: float | None = None) -> str:
        """Return advice on the batch size, in sentences.

        With the noise scale S, batches of B items reach the same loss in ``1 + S / B`` times the minimum number of
        updates, and ``1 + B / S`` times the minimum number of items.

        Args:
            batch: items per update; by default those of the last window.

        Sources:
            McCandlish et al. 2018, sections 2.2 (the best learning rate at each batch size) and 2.3.
        """
        value, batch = self.value, batch or self._batch
        if value is None:
            why = f" Windows without an estimate: {self._skipped()}." if self.skipped else ""
            return f"There is no estimate of the gradient noise scale yet.{why}"
        if not 0 < value < math.inf:
            what = "noise hides the gradient" if value else "no noise is visible"
            return f"In {_updates(self.updates)}, {what}. Measure longer, with decay closer to 1."
        near = (
            "With a larger batch, the number of updates would fall nearly in proportion: see gg.scale_lr."
            if batch < value / 2
            else "A larger batch would save few updates, and would hardly allow a larger learning rate."
            if batch > value * 2
            else "This batch size balances updates and items."
        )
        return (
            f"The gradient noise scale is about {_about(value)} items. A batch of {batch:,.10g} takes about "
            f"{_about(1 + value / batch)} times the minimum number of updates, and {_about(1 + batch / value)} "
            f"times the minimum number of items. {near}"
        )

    def _skipped(self) -> str:
        return ", ".join(f"{number:,} with {reason}" for reason, number in self.skipped.items())

    def __repr__(self) -> str:
        value = "no estimate" if self.value is None else f"{_about(self.value)} items"
        skipped = f"; skipped: {self._skipped()}" if self.skipped else ""
        return f"NoiseScale({value} after {_updates(self.updates)}{skipped})"

    def state_dict(self) -> dict[str, Any]:
        """Return the averages as numbers. :meth:`Accumulator.state_dict` includes them."""
        names = ("updates", "_weight", "_square", "_trace", "_batch")
        return {**{name.strip("_"): getattr(self, name) for name in names}, "skipped": dict(self.skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved averages. Does not change ``decay``."""
        self.updates, self.skipped = int(state["updates"]), dict(state["skipped"])
        self._weight, self._square, self._trace = state["weight"], state["square"], state["trace"]
        self._batch = state["batch"]


def refuse_sharded(parameters: Sequence[Tensor]) -> None:
    """Raise OptionError if parameters are sharded over ranks."""
    if any(map(is_dtensor, parameters)):
        raise OptionError(
            "Accumulator: noise_scale does not work with parameters that are sharded over ranks: their gradients "
            "are summed only at the window's last micro-batch. Leave noise_scale out, or measure with DDP."
        )


def add_window(
    noise_scale: NoiseScale, smalls: Sequence[SmallBatch], losses: int, square: float, count: float
) -> None:
    """Add a window to the averages, after its step.

    Args:
        noise_scale: the averages.
        smalls: the first micro-batch of each rank.
        losses: the number of losses in the window.
        square: the squared norm of the mean gradient of the window, over all ranks.
        count: the number of items in the window.
    """
    noise_scale._batch = count
    small = _pooled(smalls) if smalls else SmallBatch(0.0, 0.0)
    weight = count - small.items
    reason = (
        "several losses"
        if losses != 1
        else "no first gradient"
        if not smalls
        else "one micro-batch"
        if weight <= 0
        else ""
    )
    if not reason:
        trace = (small.square - square) / (1 / small.items - 1 / count)
        signal = (count * square - small.items * small.square) / weight
        reason = "" if math.isfinite(trace) and math.isfinite(signal) else "not finite"
    if reason:
        noise_scale.skipped[reason] = noise_scale.skipped.get(reason, 0) + 1
        return
    noise_scale.updates += 1
    noise_scale._weight = noise_scale.decay * noise_scale._weight + weight
    noise_scale._trace = noise_scale.decay * noise_scale._trace + weight * trace
    noise_scale._square = noise_scale.decay * noise_scale._square + weight * signal


def claim_noise_scale(noise_scale: Any, owner: object) -> None:
    """Bind a noise scale to the accumulator that uses it.

    Raises:
        OptionError: ``noise_scale`` has another type, or belongs to another accumulator.
    """
    if noise_scale is None:
        return
    if not isinstance(noise_scale, NoiseScale):
        raise OptionError(f"Accumulator: noise_scale is {noise_scale!r}; pass gg.NoiseScale().")
    if noise_scale._owner is not None and noise_scale._owner() is not None:
        raise OptionError(
            "Accumulator: noise_scale belongs to another accumulator, so the estimate would mix the gradients of "
            "both. Create one for each: noise_scale=gg.NoiseScale()."
        )
    noise_scale._owner = weakref.ref(owner)


def _updates(number: int) -> str:
    return f"{number:,} update{'' if number == 1 else 's'}"


def _about(number: float) -> str:
    """Return a number as text, rounded to two digits."""
    return f"{float(f'{number:.2g}'):,.10g}"
