"""The running sum of one loss in a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction, as_number, by_device, total
from gradgate.accumulation._norm import total_norm
from gradgate.accumulation._precision import LossScale
from gradgate.batch_size import SmallBatch
from gradgate.tally import Tally

# A sum may grow to this multiple of the mean: float16 ends at 65504, other dtypes at 3e38 or above.
_HEADROOM, _HALF_HEADROOM = 2.0**32, 16.0
SAME: Count = 1.0
"""The factor and weight of a contribution that has the sum's unit already, so nothing is multiplied."""


@dataclass(repr=False)
class RunningSum:
    """The sum of one loss over a window: ``sum(count * gradient) / unit``, and the counts.

    The divisor of the window is not known before the window ends, so the sum is held in units of ``unit`` items
    and multiplied by ``unit / count`` at the end. The unit is the count of the latest micro-batch: its
    gradient is added unscaled, so that hooks and gates see the gradient of a plain ``loss.backward()``. If
    counts are equal, nothing is multiplied before the end.

    Args:
        name: the name of the loss.
        headroom: returns the largest multiple of the mean that the sum may reach. Beyond it, a gradient is added
            with a weight below 1.
    """

    name: str
    headroom: Callable[[], float] = lambda: _HEADROOM
    unit: Count | None = None
    contributions: list[tuple[Count, Reduction, Tensor | float]] = field(default_factory=list)
    limit: float = _HALF_HEADROOM  # replaced by the headroom when the sum first exceeds it
    known: float = 0  # the sum of the counts so far that are plain numbers
    all_known: bool = True  # whether `known` includes every count
    aside: list[Tensor | None] | None = None  # its gradients while `.grad` holds another loss's

    def __repr__(self) -> str:
        return f"RunningSum({self.name!r}, {len(self.contributions)} contributions)"

    def prepare(
        self, loss: Tensor, count: Count, reduction: Reduction, items: float | None = None
    ) -> tuple[Count, Count]:
        """Choose the unit of the sum for its next contribution.

        If ``items`` is given, the contribution is a mean over that many items.

        Returns:
            the factor that converts the sum so far to that unit, and the weight of the contribution. Usually,
            both are the object ``SAME``, which callers recognize with ``is``.
        """
        before, per_item = self.unit, items or (1.0 if reduction == "sum" else count)
        if (
            type(before) is type(count) is int
            and per_item == before
            and self.known + count <= self.limit * before
        ):
            return SAME, SAME
        self.unit = unit = self._unit_for(loss, count, per_item)
        if unit is per_item and (
            before is None or (type(before) is type(unit) is not Tensor and before == unit)
        ):
            return SAME, SAME
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
        if isinstance(count, Tensor):
            self.all_known = False
        else:
            self.known += count
        # On a device, keep a clone: reading would synchronize, and some of torch's losses return a scalar in a
        # storage as large as the input.
        self.contributions.append((count, reduction, loss.item() if loss.is_cpu else loss.detach().clone()))

    def total_count(self) -> int | float:
        """Return the number of items so far. Synchronizes with the device if counts are on a device."""
        return self.known if self.all_known else total([count for count, _, _ in self.contributions])

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
        values = _numbers([loss for _, _, loss in self.contributions])
        counts = [as_number(count) for count, _, _ in self.contributions]
        summed = sum(
            value if reduction == "sum" else value * count
            for value, count, (_, reduction, _) in zip(values, counts, self.contributions, strict=True)
            if count  # the mean over no items is 0/0; it adds nothing
        )
        return Tally(float(summed), sum(counts))

    def state_dict(self, gradients: Iterable[Tensor | None] = ()) -> dict[str, Any]:
        """Return a copy of the sum and its ``gradients`` in plain containers, with counts as numbers."""
        return {
            "gradients": [None if gradient is None else gradient.detach().clone() for gradient in gradients],
            "name": self.name,
            "unit": None if self.unit is None else as_number(self.unit),
            "counts": [as_number(count) for count, _, _ in self.contributions],
            "reductions": [reduction for _, reduction, _ in self.contributions],
            "losses": _numbers([loss for _, _, loss in self.contributions]),
            "known": self.known,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], headroom: Callable[[], float]) -> RunningSum:
        """Rebuild a sum from :meth:`state_dict`. Other keys are ignored."""
        contributions = list(zip(state["counts"], state["reductions"], state["losses"], strict=True))
        # Counts that were on a device are numbers now, which `known` does not include.
        known, all_known = state["known"], math.isclose(state["known"], sum(state["counts"]))
        return cls(state["name"], headroom, state["unit"], contributions, known=known, all_known=all_known)


def headroom_of(parameters: Iterable[Tensor]) -> float:
    """Return the largest multiple of the mean that a sum in these parameters' ``.grad`` may reach."""
    half = any((parameter.grad_dtype or parameter.dtype) == torch.float16 for parameter in parameters)
    return _HALF_HEADROOM if half else _HEADROOM


def _ratio(above: Count, below: Count, loss: Tensor) -> Count:
    """Return a quotient of counts, on the loss's device if either is a tensor. Needs no synchronization."""
    if not isinstance(above, Tensor) and not isinstance(below, Tensor):
        return above / below
    return _on_device(above, loss.device, _wide(loss)) / _on_device(below, loss.device, _wide(loss))


def _wide(loss: Tensor) -> torch.dtype:
    """Return the dtype for counts on a device: at least float32, so that a float16 loss keeps its weight."""
    return torch.promote_types(loss.dtype, torch.float32)


def _on_device(number: Count, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a count on a device. A number is created there, because copying it would synchronize."""
    if isinstance(number, Tensor):
        return number.to(device, dtype)
    return torch.full((), number, device=device, dtype=dtype)


def _numbers(scalars: list[Tensor | float]) -> list[float]:
    """Return scalars as numbers, with one synchronization if all are on one device."""
    tensors = [scalar for scalar in scalars if isinstance(scalar, Tensor)]
    if tensors and len(tensors) == len(scalars) and len({(each.device, each.dtype) for each in tensors}) == 1:
        return [float(value) for value in torch.stack([each.reshape(()) for each in tensors]).tolist()]
    return [float(scalar) for scalar in scalars]


def measured(
    values: Sequence[Tensor], count: Count, unit: Count, scale: LossScale | None
) -> Callable[[], SmallBatch | None]:
    """Measure the gradient of a window's first contribution. Only calling the returned function synchronizes."""
    norms = [total_norm(each) for each in by_device(values).values()]  # joining them would synchronize

    def read() -> SmallBatch | None:
        items = as_number(count)
        if not items:
            return None
        loss_scale = None if scale is None else scale.value()
        norm = math.hypot(*map(float, norms)) * as_number(unit) / items / (loss_scale or 1.0)
        return SmallBatch(norm * norm, items)

    return read
