"""The micro-batches that a batch is split into."""

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
    """Which samples of a batch a micro-batch has, without their data; see :class:`MicroBatch`."""

    indices: Sequence[int]
    length: int
    count: int
    peak_bytes: int


class MicroBatch(Generic[T]):
    """Some samples of a batch, for one forward and backward pass.

    Attributes:
        count: valid items: the sum of the samples' lengths, or the number of samples if they have no lengths.
        indices: where its samples are in the batch, ``[samples]``, in the order of the micro-batch.
        length: columns that it is trimmed to; 0 if it is not trimmed.
        peak_bytes: the estimated peak of its forward and backward pass, beside resident memory.
    """

    def __init__(self, samples: Samples, part: Part) -> None:
        self.indices = tuple(part.indices)
        self.length, self.count, self.peak_bytes = part.length, part.count, part.peak_bytes
        self._samples = samples

    @functools.cached_property
    def data(self) -> T:
        """The samples, in the batch's own types. Assembled on first use: one micro-batch exists at a time."""
        taken: T = self._samples.take(self.indices, self.length)
        return taken

    def __repr__(self) -> str:
        length = f" of length {self.length}" if self.length else ""
        return f"MicroBatch({len(self.indices)} samples{length}, count={self.count})"


class Split(Sequence[MicroBatch[T]]):
    """The micro-batches of a batch, each made when it is asked for."""

    def __init__(self, parts: Sequence[Part], samples: Samples) -> None:
        self.parts = parts
        self.samples = samples

    @overload
    def __getitem__(self, index: int) -> MicroBatch[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Split[T]: ...
    def __getitem__(self, index: int | slice) -> MicroBatch[T] | Split[T]:
        if isinstance(index, slice):
            return Split(self.parts[index], self.samples)
        return MicroBatch(self.samples, self.parts[index])

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        samples = sum(len(part.indices) for part in self.parts)
        return f"Split({samples} samples in {len(self)} micro-batches)"

    @property
    def padding(self) -> float:
        """The share of the columns that are padding; 0 without lengths."""
        return padding_of(self.parts)

    @property
    def peak_bytes(self) -> int:
        """The largest estimated peak of its micro-batches."""
        return max((part.peak_bytes for part in self.parts), default=0)

    def in_order(self, outputs: Iterable[Tensor]) -> Tensor:
        """Join the micro-batches' per-sample outputs, in the order of the batch.

        Args:
            outputs: one for each micro-batch, ``[its samples, ...]``, in the order of the split.

        Returns:
            ``[all samples, ...]``
        """
        indices = torch.tensor([index for part in self.parts for index in part.indices])
        joined = torch.cat(list(outputs))
        return joined[indices.argsort().to(joined.device)]


def padding_of(parts: Iterable[Part]) -> float:
    """Return the share of the columns that are padding."""
    parts = list(parts)
    columns = sum(len(part.indices) * part.length for part in parts)
    return 1 - sum(part.count for part in parts) / columns if columns else 0.0
