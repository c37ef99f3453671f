"""The gradient sum of one loss, kept at ordinary size until it is divided once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction, as_number, total
from gradgate.tally import Tally

# Times the mean, to which a sum may grow: float16 holds no more than 65504, other types at least 3e38.
_HEADROOM, _HALF_HEADROOM = 2.0**32, 16.0


@dataclass
class RunningSum:
    """What a window has added up for one loss: ``sum(count * gradient) / unit``, and the counts.

    The divisor of the window is not known before the window ends, so the sum is held in units of ``unit`` items
    and multiplied by ``unit / count`` at the end. The unit is the count of the latest micro-batch: its gradient
    enters as the backward pass of the loss itself leaves it, so that hooks and gates see the gradient of a plain
    ``loss.backward()``. Where counts are equal, nothing is multiplied before the end.

    Args:
        name: the name of the loss.
        headroom: times the mean, to which the sum may grow. Beyond it a gradient enters with a weight below 1.
    """

    name: str
    headroom: float = _HEADROOM
    unit: Count | None = None
    counts: list[Count] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    losses: list[Tensor | float] = field(default_factory=list)
    known: float = 0.0  # the counts so far that are numbers, added up
    aside: list[Tensor | None] | None = None  # its gradients while another loss's stand in `.grad`

    def make_ready(self, loss: Tensor, count: Count, reduction: Reduction) -> Count:
        """Choose the unit for the next contribution; return the factor that brings the sum so far to it."""
        before, self.unit = self.unit, self._unit_for(loss, count, reduction)
        return 1.0 if before is None else _ratio(before, self.unit, loss)

    def weight(self, loss: Tensor, count: Count, reduction: Reduction) -> Count:
        """Return the factor with which a contribution enters the sum in its present unit."""
        if self.unit is None:
            raise ValueError("weight: there is no unit yet; call make_ready first.")
        return _ratio(1.0 if reduction == "sum" else count, self.unit, loss)

    def _unit_for(self, loss: Tensor, count: Count, reduction: Reduction) -> Count:
        per_item = 1.0 if reduction == "sum" else count
        if isinstance(per_item, Tensor):  # perhaps zero, which nobody may wait to see
            wide = per_item.to(loss.device, _wide(loss))
            before = 1.0 if self.unit is None else self.unit
            return torch.where(wide > 0, wide, _on_device(before, loss.device, wide.dtype))
        if isinstance(count, Tensor) or self.known + count <= self.headroom * per_item:
            return per_item
        least = (self.known + count) / self.headroom
        if self.unit is not None and not isinstance(self.unit, Tensor) and self.unit >= max(least, per_item):
            return self.unit
        return float(per_item * 2.0 ** math.ceil(math.log2(least / per_item)))

    def record(self, loss: Tensor, count: Count, reduction: Reduction) -> None:
        """Note one contribution whose gradient has been added (or is zero, for a count of zero)."""
        self.counts.append(count)
        self.known += 0.0 if isinstance(count, Tensor) else count
        self.reductions.append(reduction)
        # A number where reading it waits for nothing. Else a clone: some of torch's losses return their one
        # number in a storage as large as the input.
        self.losses.append(loss.item() if loss.device.type == "cpu" else loss.detach().clone())

    def total_count(self) -> int | float:
        """Return the items so far. Waits for the device where counts lie on one."""
        return total(self.counts)

    def factor(self, count: float) -> float:
        """Return what turns the sum into the mean over ``count`` items. Waits like :meth:`total_count`."""
        return 0.0 if self.unit is None or not count else as_number(self.unit) / count

    def tally(self) -> Tally:
        """Return the loss summed over its items, and their number. Waits for the device."""
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
    def from_state(cls, state: dict[str, Any], headroom: float = _HEADROOM) -> RunningSum:
        """Rebuild what :meth:`state_dict` returned."""
        # The caller's state stays as it is.
        lists = {key: list(item) for key, item in state.items() if isinstance(item, list)}
        known = {key: item for key, item in state.items() if key != "expected"}  # which gradgate 0.1 wrote
        return cls(**{**known, **lists}, headroom=headroom)


def headroom_of(parameters: Iterable[Tensor]) -> float:
    """Return the headroom of sums in the ``.grad`` of these parameters."""
    half = any((parameter.grad_dtype or parameter.dtype) == torch.float16 for parameter in parameters)
    return _HALF_HEADROOM if half else _HEADROOM


def _ratio(above: Count, below: Count, loss: Tensor) -> Count:
    """Divide two counts, on the loss's device if one is a tensor: nothing waits for it."""
    if not isinstance(above, Tensor) and not isinstance(below, Tensor):
        return above / below
    return _on_device(above, loss.device, _wide(loss)) / _on_device(below, loss.device, _wide(loss))


def _wide(loss: Tensor) -> torch.dtype:
    """Return the type for counts on a device: at least float32, so that a half loss keeps its weight."""
    return torch.promote_types(loss.dtype, torch.float32)


def _on_device(number: Count, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Bring a count to a device. A number is filled in there: copying it over would wait for the device."""
    if isinstance(number, Tensor):
        return number.to(device, dtype)
    return torch.full((), number, device=device, dtype=dtype)


def _numbers(scalars: list[Tensor | float]) -> list[float]:
    """Read many scalars, with one wait if all lie on one device."""
    tensors = [scalar for scalar in scalars if isinstance(scalar, Tensor)]
    if tensors and len(tensors) == len(scalars) and len({(one.device, one.dtype) for one in tensors}) == 1:
        return [float(value) for value in torch.stack([one.reshape(()) for one in tensors]).tolist()]
    return [float(scalar) for scalar in scalars]
