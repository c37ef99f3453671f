"""Finds the tensors of a batch that all samples may share, although they are as long as the batch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradgate.batch_layout._fields import Path, field_name, key_of


@dataclass(frozen=True)
class Array:
    """An array of a batch, and the dimension that holds its samples."""

    value: Any
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def other_sizes(self) -> tuple[int, ...]:
        return self.shape[: self.dim] + self.shape[self.dim + 1 :]

    @property
    def kind(self) -> str:
        """``f`` for floating numbers, ``i`` for integers, ``b`` for booleans, or another letter."""
        if not isinstance(self.value, Tensor):
            return "i" if self.value.dtype.kind == "u" else str(self.value.dtype.kind)
        dtype = self.value.dtype
        return (
            "f"
            if dtype.is_floating_point
            else "b"
            if dtype == torch.bool
            else "c"
            if dtype.is_complex
            else "i"
        )

    def is_like_a_sample_of(self, other: Array) -> bool:
        """Return whether this has the shape of one sample of another array, or of a part or square of it."""
        sizes = iter(other.other_sizes)
        if len(set(self.shape)) == 1:
            return self.shape[0] in sizes
        return all(size in sizes for size in self.shape)  # in this order, because each test moves on

    def is_positions(self) -> bool:
        """Return whether this is the vector 0, 1, 2, ..."""
        return len(self.shape) == 1 and torch.as_tensor(self.value).tolist() == list(range(self.shape[0]))

    def is_cumulative(self, totals: Set[int]) -> bool:
        """Return whether this is a vector of cumulative lengths, from 0 to one of ``totals``."""
        if self.kind != "i" or len(self.shape) != 1 or self.shape[0] < 2:
            return False
        values = torch.as_tensor(self.value).tolist()
        return values[0] == 0 and values[-1] in totals and values == sorted(values)


def shared_arrays(arrays: Mapping[Path, Array], certain: Set[Path], samples: int) -> dict[Path, str]:
    """Return the arrays that all samples may share, with the reasons.

    The sizes of a shared array are sizes of one sample: ``pos_weight [C]`` next to targets ``[samples, C]``, a
    mask ``[T, T]`` or positions ``[T, D]`` next to ``[samples, T, D]``. Floating-point numbers ``[samples]`` may be
    class weights if there are labels, which are integers ``[samples]``. These arrays certainly hold samples:

    - those in ``certain``, and the one with the most dimensions
    - the vector of an ordinary batch ``(x, y)``
    - integers, which are ids or labels, except for the positions 0, 1, 2, ...
    """
    most = max((len(array.shape) for array in arrays.values()), default=0)
    largest = [path for path, array in arrays.items() if len(array.shape) == most]
    reasons: dict[Path, str] = {}
    for path, array in arrays.items():
        is_square, is_vector = set(array.shape) == {samples}, len(array.shape) == 1
        if path in certain or (path in largest and (len(largest) == 1 or not is_square)):
            continue
        if (is_vector and len(arrays) == 2) or (array.kind == "i" and not array.is_positions()):
            continue
        reason = _reason(array, {name: other for name, other in arrays.items() if name != path})
        if reason:
            reasons[path] = reason
    return reasons


def _reason(array: Array, others: Mapping[Path, Array]) -> str:
    """Return why all samples may share an array; "" if they do not."""
    for path, other in others.items():
        if array.is_like_a_sample_of(other):
            size, shape = array.shape[0], list(other.shape)
            return f"{size} is also another size of {field_name(path)}, whose shape is {shape}"
    if array.kind == "f" and len(array.shape) == 1 and len(others) > 1:
        for path, other in others.items():
            if other.kind == "i" and len(other.shape) == 1:
                return f"{field_name(path)} may hold labels, and these numbers the weights of the classes"
    return ""


def question(reasons: Mapping[Path, str], samples: int) -> str:
    """Return the message that asks which arrays are shared."""
    names = " and ".join(map(field_name, reasons))
    verb = "holds" if len(reasons) == 1 else "hold"
    answer = ", ".join(f"{key_of(path)}: 0" for path in reasons)
    return (
        f"split: cannot tell whether {names} {verb} one entry for each of the {samples} samples, or data that all "
        f"samples share: {next(iter(reasons.values()))}. Pass batch_dim={{{answer}}} for one entry per sample, "
        "with None in place of 0 for shared data."
    )
