"""The pieces that a window is cut into."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from gradgate.planning._samples import Samples

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """Where a micro-batch lies in a batch, without its data; see :class:`MicroBatch`."""

    indices: Sequence[int]
    length: int
    count: int
    peak_bytes: int


class MicroBatch(Generic[T]):
    """Some samples of a window, to go through the model together.

    Attributes:
        count: valid items in it: the sum of its samples' lengths; without lengths its samples.
        indices: of its samples in the batch, ``[samples]``, in its own order.
        length: columns that it is trimmed to; 0 where it is not.
        peak_bytes: what its forward and backward pass are foreseen to hold at once, beside what stands.
    """

    def __init__(self, samples: Samples, part: Part) -> None:
        self.indices = tuple(part.indices)
        self.length, self.count, self.peak_bytes = part.length, part.count, part.peak_bytes
        self._samples = samples

    @functools.cached_property
    def data(self) -> T:
        """The samples, in the batch's own types. Put together when asked for, so that one at a time is there."""
        taken: T = self._samples.take(self.indices, self.length)
        return taken

    def __repr__(self) -> str:
        long = f" of length {self.length}" if self.length else ""
        return f"MicroBatch({len(self.indices)} samples{long}, count={self.count})"


class Cut(Sequence[MicroBatch[T]]):
    """The micro-batches of a window, each made when it is asked for."""

    def __init__(self, parts: Sequence[Part], samples: Samples) -> None:
        self.parts = parts
        self.samples = samples

    @overload
    def __getitem__(self, place: int) -> MicroBatch[T]: ...
    @overload
    def __getitem__(self, place: slice) -> Cut[T]: ...
    def __getitem__(self, place: int | slice) -> MicroBatch[T] | Cut[T]:
        if isinstance(place, slice):
            return Cut(self.parts[place], self.samples)
        return MicroBatch(self.samples, self.parts[place])

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def padding(self) -> float:
        """Share of the columns that are computed for nothing; 0 without lengths."""
        return padding_of(self.parts)

    @property
    def peak_bytes(self) -> int:
        """The largest of its micro-batches' peaks."""
        return max((part.peak_bytes for part in self.parts), default=0)

    def in_order(self, outputs: Iterable[Tensor]) -> Tensor:
        """Put per-sample outputs of the micro-batches together, in the order of the batch.

        Args:
            outputs: of each micro-batch, ``[its samples, ...]``, in the order of the cut.

        Returns:
            ``[all samples, ...]``
        """
        indices = torch.tensor([index for part in self.parts for index in part.indices])
        joined = torch.cat(list(outputs))
        return joined[indices.argsort().to(joined.device)]


def padding_of(parts: Iterable[Part]) -> float:
    """Return the share of the columns that are computed for nothing."""
    parts = list(parts)
    columns = sum(len(part.indices) * part.length for part in parts)
    return 1 - sum(part.count for part in parts) / columns if columns else 0.0
