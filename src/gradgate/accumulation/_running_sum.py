"""The gradient sum of one loss, kept at ordinary size until it is divided once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._counts import Count, Reduction, as_number, is_zero, total
from gradgate.tally import Tally

_HEADROOM = 16  # the running sum may grow to this many times the mean before it is scaled down


@dataclass
class RunningSum:
    """What a window has added up for one loss: ``sum(count * gradient) / unit``, and the counts.

    The divisor of the window is not known before the window ends, so the sum is held in units of
    ``unit`` items and multiplied by ``unit / count`` at the end. The unit is the first count times a
    power of two not less than the expected number of micro-batches. So equal micro-batches enter with
    a power of two as weight, which rounds nothing, and where their number is itself a power of two the
    final factor is exactly 1 and needs no pass over the gradients.

    Args:
        name: the name of the loss.
        expected: how many micro-batches will come, as far as known; 1 if unknown. Only a hint for size.
    """

    name: str
    expected: int = 1
    unit: Count | None = None
    counts: list[Count] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    losses: list[Tensor | float] = field(default_factory=list)
    known: float = 0.0  # the counts so far that are numbers, added up
    aside: list[Tensor | None] | None = None  # its gradients while another loss's stand in `.grad`

    def weight(self, loss: Tensor, count: Count, reduction: Reduction) -> Count:
        """Return the factor with which this loss's gradient enters the sum; fix the unit if it is the first."""
        if self.unit is None:
            self.unit = _first_unit(count, self.expected)
        per_item = 1.0 if reduction == "sum" else count
        if not isinstance(per_item, Tensor) and not isinstance(self.unit, Tensor):
            return per_item / self.unit
        # Divided on the device, in at least float32: nothing waits, and a half loss keeps its weight.
        wide = torch.promote_types(loss.dtype, torch.float32)
        return _on_device(per_item, loss.device, wide) / _on_device(self.unit, loss.device, wide)

    def overgrowth(self, count: Count) -> float:
        """Return the power of two by which to shrink the sum before ``count`` more items are added.

        1 nearly always: only a micro-batch that is much larger than the first one, or a window much
        longer than expected, makes it more. Powers of two shrink without rounding.
        """
        if self.unit is None or isinstance(self.unit, Tensor) or isinstance(count, Tensor):
            return 1.0
        if count <= self.unit and self.known + count <= _HEADROOM * self.unit:
            return 1.0
        excess = max(count / self.unit, (self.known + count) / (_HEADROOM * self.unit))
        return 2.0 ** math.ceil(math.log2(excess)) if excess > 1 else 1.0

    def shrink(self, factor: float) -> None:
        """Note that the gradients of this sum were divided by ``factor``."""
        self.unit = None if self.unit is None else self.unit * factor

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
            "expected": self.expected,
            "unit": None if self.unit is None else as_number(self.unit),
            "counts": [as_number(count) for count in self.counts],
            "reductions": list(self.reductions),
            "losses": _numbers(self.losses),
            "known": self.known,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RunningSum:
        """Rebuild what :meth:`state_dict` returned."""
        # The caller's state stays as it is.
        lists = {key: list(item) for key, item in state.items() if isinstance(item, list)}
        return cls(**{**state, **lists})


def _first_unit(count: Count, expected: int) -> Count:
    """Choose the unit from the first count that is not zero."""
    scale = 2.0 ** math.ceil(math.log2(max(expected, 1)))
    if isinstance(count, Tensor):
        wide = count.to(torch.promote_types(count.dtype, torch.float32))
        return torch.where(wide > 0, wide, 1.0) * scale
    return (1 if is_zero(count) else count) * scale


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
