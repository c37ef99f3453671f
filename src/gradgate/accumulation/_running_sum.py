"""The running sum of each loss in a window, and a counter of the window's micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction, as_number, total
from gradgate.errors import UpdateError
from gradgate.tally import Tally

T = TypeVar("T")

# A sum may grow to this multiple of the mean: float16 ends at 65504, other dtypes at 3e38 or above.
_HEADROOM, _HALF_HEADROOM = 2.0**32, 16.0


@dataclass(repr=False)
class RunningSum:
    """The sum of one loss over a window: ``sum(count * gradient) / unit``, and the counts.

    The divisor of the window is not known before the window ends, so the sum is held in units of ``unit`` items
    and multiplied by ``unit / count`` at the end. The unit is the count of the latest micro-batch: its
    gradient is added unscaled, so that hooks and gates see the gradient of a plain ``loss.backward()``. If
    counts are equal, nothing is multiplied before the end.

    Args:
        name: the name of the loss.
        headroom: returns the largest allowed multiple of the mean for the sum. Beyond it, a gradient is added
            with a weight below 1.
    """

    name: str
    headroom: Callable[[], float] = lambda: _HEADROOM
    unit: Count | None = None
    counts: list[Count] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    losses: list[Tensor | float] = field(default_factory=list)
    limit: float = _HALF_HEADROOM  # replaced by the headroom when the sum first exceeds it
    known: float = 0  # the sum of the counts so far that are plain numbers
    aside: list[Tensor | None] | None = None  # its gradients while `.grad` holds another loss's

    def __repr__(self) -> str:
        return f"RunningSum({self.name!r}, {len(self.counts)} contributions)"

    def prepare(
        self, loss: Tensor, count: Count, reduction: Reduction, items: float | None = None
    ) -> tuple[Count, Count]:
        """Choose the unit for the next contribution, which is a mean over ``items`` if given.

        Returns:
            the factor that converts the sum so far to that unit, and the weight of the contribution.
        """
        before, per_item = self.unit, items or (1.0 if reduction == "sum" else count)
        if (
            type(before) is type(count) is int
            and per_item == before
            and self.known + count <= self.limit * before
        ):
            return 1.0, 1.0
        self.unit = unit = self._unit_for(loss, count, per_item)
        if unit is per_item and type(before) is type(unit) is not Tensor and before == unit:
            return 1.0, 1.0
        return 1.0 if before is None else _ratio(before, unit, loss), self.weight(loss, per_item)

    def weight(self, loss: Tensor, per_item: Count) -> Count:
        """Return the weight of a contribution in the current unit of the sum."""
        if self.unit is None:
            raise ValueError("weight: there is no unit yet; call prepare first.")
        return _ratio(per_item, self.unit, loss)

    def _unit_for(self, loss: Tensor, count: Count, per_item: Count) -> Count:
        if isinstance(per_item, Tensor):  # may be zero; checking would synchronize
            wide = per_item.to(loss.device, _wide(loss))
            before = 1.0 if self.unit is None else self.unit
            return torch.where(wide > 0, wide, _on_device(before, loss.device, wide.dtype))
        if isinstance(count, Tensor):
            return per_item
        known = self.known + count
        if known > self.limit * per_item:
            self.limit = self.headroom()
        if known <= self.limit * per_item:
            return per_item
        least = known / self.limit
        if self.unit is not None and not isinstance(self.unit, Tensor) and self.unit >= max(least, per_item):
            return self.unit
        return float(per_item * 2.0 ** math.ceil(math.log2(least / per_item)))

    def record(self, loss: Tensor, count: Count, reduction: Reduction) -> None:
        """Record a contribution whose gradient has been added (or is zero, for a count of zero)."""
        self.counts.append(count)
        if not isinstance(count, Tensor):
            self.known += count
        self.reductions.append(reduction)
        # On a device, keep a clone: reading would synchronize, and some of torch's losses return a scalar in a
        # storage as large as the input.
        self.losses.append(loss.item() if loss.is_cpu else loss.detach().clone())

    def total_count(self) -> int | float:
        """Return the number of items so far. Synchronizes with the device if counts are on a device."""
        on_device = any(isinstance(count, Tensor) for count in self.counts)
        return total(self.counts) if on_device else self.known

    def factor(self, count: float) -> float:
        """Return the factor that turns the sum into the mean over ``count`` items.

        Synchronizes as :meth:`total_count`.
        """
        if self.unit is None or not count:
            return 0.0
        unit = as_number(self.unit) if isinstance(self.unit, Tensor) else self.unit
        return unit / count

    def tally(self) -> Tally:
        """Return the loss summed over its items, and the number of items. Synchronizes with the device."""
        values = _numbers(self.losses)
        counts = [as_number(count) for count in self.counts]
        summed = sum(
            value if reduction == "sum" else value * count
            for value, count, reduction in zip(values, counts, self.reductions, strict=True)
            if count  # the mean over no items is 0/0; it adds nothing
        )
        return Tally(float(summed), sum(counts))

    def state_dict(self) -> dict[str, Any]:
        """Return copies in plain containers, counts as numbers."""
        return {
            "name": self.name,
            "unit": None if self.unit is None else as_number(self.unit),
            "counts": [as_number(count) for count in self.counts],
            "reductions": list(self.reductions),
            "losses": _numbers(self.losses),
            "known": self.known,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], headroom: Callable[[], float]) -> RunningSum:
        """Rebuild a sum from :meth:`state_dict`."""
        # Copied, so that the caller's state does not change.
        lists = {key: list(item) for key, item in state.items() if isinstance(item, list)}
        return cls(**{**state, **lists}, headroom=headroom)


def headroom_of(parameters: Iterable[Tensor]) -> float:
    """Return the headroom of sums in the ``.grad`` of these parameters."""
    half = any((parameter.grad_dtype or parameter.dtype) == torch.float16 for parameter in parameters)
    return _HALF_HEADROOM if half else _HEADROOM


def _ratio(above: Count, below: Count, loss: Tensor) -> Count:
    """Divide two counts, on the loss's device if either is a tensor. Needs no synchronization."""
    if not isinstance(above, Tensor) and not isinstance(below, Tensor):
        return above / below
    return _on_device(above, loss.device, _wide(loss)) / _on_device(below, loss.device, _wide(loss))


def _wide(loss: Tensor) -> torch.dtype:
    """Return the dtype for counts on a device: at least float32, so that a float16 loss keeps its weight."""
    return torch.promote_types(loss.dtype, torch.float32)


def _on_device(number: Count, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Move a count to a device. A number is created there, because copying it would synchronize."""
    if isinstance(number, Tensor):
        return number.to(device, dtype)
    return torch.full((), number, device=device, dtype=dtype)


def _numbers(scalars: list[Tensor | float]) -> list[float]:
    """Read many scalars, with one synchronization if all are on one device."""
    tensors = [scalar for scalar in scalars if isinstance(scalar, Tensor)]
    if tensors and len(tensors) == len(scalars) and len({(each.device, each.dtype) for each in tensors}) == 1:
        return [float(value) for value in torch.stack([each.reshape(()) for each in tensors]).tolist()]
    return [float(scalar) for scalar in scalars]


class MicroBatchCounter:
    """Counts the micro-batches and backward calls of a window, and names its losses.

    Attributes:
        in_loop: whether the loop is over ``update.micro_batches(...)``.
        expected: how many micro-batches the window will have, if known; otherwise 1.
        micro_batches: micro-batches begun so far, including those of a resumed window.
        last: whether the current micro-batch is known to be the last.
        calls: backward calls in the current micro-batch.
        idle: earlier micro-batches without a backward call: the loop skipped them, or drew them too early.
        unnamed: losses without a name in the current micro-batch.
        usual: the number of unnamed losses in earlier micro-batches.
        to_skip: micro-batches that a resumed window has already added.
    """

    in_loop = False
    expected = 1
    micro_batches = 0
    last = False
    calls = 0
    idle = 0
    to_skip = 0
    unnamed = 0
    usual = 0

    @property
    def done(self) -> int:
        """The number of micro-batches whose losses are in the sum."""
        return self.micro_batches - (self.in_loop and not self.calls)

    def resume(self, done: int) -> None:
        """Continue after the micro-batches that a saved window holds."""
        self.micro_batches = self.to_skip = done

    def begin(self, number: int) -> None:
        """Begin a micro-batch of the loop."""
        if self.unnamed != self.usual:
            self.check_losses()
        if not self.calls and number > self.to_skip + 1:
            self.idle += 1
        self.micro_batches, self.calls, self.unnamed = number, 0, 0

    def refuse_idle(self, what: str) -> None:
        """Raise UpdateError if micro-batches without a backward call hide which micro-batch is current."""
        if self.idle:
            raise UpdateError(
                f"{what}: the loop is at micro-batch {self.micro_batches}, but {self.idle} of the earlier ones had "
                "no backward. If list(...) or a prefetcher drew them early, this call belongs to another "
                "micro-batch. Loop over update.micro_batches(...) itself, and prefetch inside: "
                "update.micro_batches(prefetch(window)). If they were skipped, pass count=0 for each. Name each "
                "loss if a micro-batch has several."
            )

    def start_loop(self) -> None:
        """Record that the window is passed as a single iterable."""
        if self.in_loop:
            raise UpdateError(
                "micro_batches: this update was already given its micro-batches. One update is one window; "
                "pass the whole window at once, for example itertools.chain(labelled, unlabelled)."
            )
        self.in_loop = True

    def looking_ahead(self, source: Iterator[T]) -> Iterator[T]:
        """Draw one micro-batch ahead, so that the last one is known when it is yielded."""
        waiting: list[T] = []
        for following in source:
            if waiting:
                yield waiting.pop()
            waiting.append(following)
        self.last = True
        yield from waiting

    def name(self, given: str | None) -> str:
        """Return the given name, or a name from the loss's position in the micro-batch."""
        if given is not None:
            return given
        if self.calls and not self.in_loop:
            raise UpdateError(
                "backward: a second call without a name, outside update.micro_batches(...), may be another "
                "micro-batch (averaged with the first) or another loss (added to the first mean). Loop over "
                "`update.micro_batches(window)`, or name each loss: name='fake'."
            )
        self.unnamed += 1
        if self.unnamed > max(1, self.usual):
            self.refuse_idle("backward")
        return "loss" if self.unnamed == 1 else f"loss {self.unnamed}"

    def check_losses(self) -> None:
        """Raise UpdateError if micro-batches have different numbers of unnamed losses."""
        if self.usual and self.unnamed and self.unnamed != self.usual:
            raise UpdateError(
                f"backward: micro-batch {self.micro_batches} had {self.unnamed} unnamed losses, but earlier "
                f"micro-batches had {self.usual}. Unnamed losses are matched by their order, so a missing "
                "loss would be mistaken for another. Name each loss: update.backward(loss, name='auxiliary')."
            )
        self.usual = self.usual or self.unnamed


def length_of(loader: Iterable[object]) -> int | None:
    """Return the length of an iterable, or None if it has none. An IterableDataset's loader may raise TypeError."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:
        return None
