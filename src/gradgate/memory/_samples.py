"""The samples of a batch, or of several that are pooled: some of them taken together, and their padding trimmed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradgate.errors import OptionError
from gradgate.memory._lengths import Lengths, lengths_of
from gradgate.nests import mapped, sample_count

Collate = Callable[[list[Any]], Any]


class Samples:
    """A batch as samples.

    Args:
        batch: a nest of tensors with the samples along dimension 0; with ``collate`` a list of raw samples.
        lengths: where their lengths are found; None: they are all alike.
        collate: makes a batch of raw samples.

    Raises:
        OptionError: the batch has no samples, or they cannot be told apart.
    """

    def __init__(self, batch: Any, *, lengths: Any = None, collate: Collate | None = None) -> None:
        count = len(batch) if collate is not None else sample_count(batch)
        if not count:
            raise OptionError(
                "plan: the batch has no samples. Give one with at least one sample."
                if count == 0
                else "plan: the tensors of the batch have no common first dimension. Pass tensors, or tuples, "
                "lists, dicts or dataclasses of tensors, with the samples along dimension 0; or a list of samples, "
                "and collate=."
            )
        self.batch = batch
        self.count = count
        self.lengths: Lengths | None = (
            None if lengths is None else lengths_of(lengths, batch, raw=collate is not None)
        )
        self._collate = collate

    def take(self, indices: Sequence[int], length: int = 0) -> Any:
        """Return some samples as a batch of the same types, trimmed to a length (0: not at all)."""
        if self._collate is not None:
            return self._collate([self.batch[index] for index in indices])
        # Neighbours of full length are a view: nothing is copied.
        run = slice(indices[0], indices[0] + len(indices))
        neighbours = not self.copies and list(indices) == list(range(run.start, run.stop))
        chosen: Any = run if neighbours else list(indices)

        def some(part: Any) -> Any:
            if isinstance(part, Tensor):
                return self._trimmed(part, length)[chosen]
            return part[run] if neighbours else type(part)(part[index] for index in indices)

        return mapped(self.batch, some)

    def _trimmed(self, tensor: Tensor, length: int) -> Tensor:
        lengths = self.lengths
        if not length or lengths is None or not lengths.width or length >= lengths.width:
            return tensor
        begin = lengths.width - length if lengths.left else 0
        for dim in _length_dims(tensor, lengths.width):
            tensor = tensor.narrow(dim, begin, length)
        return tensor

    @property
    def raw(self) -> bool:
        """Whether the samples are yet to be collated."""
        return self._collate is not None

    @property
    def copies(self) -> bool:
        """Whether taking samples makes copies of them."""
        return self.lengths is not None or self._collate is not None


def _length_dims(tensor: Tensor, width: int) -> list[int]:
    """Return the dimensions that run along the length: the second; of a mask for attention the last ones."""
    if tensor.dim() > 1 and tensor.shape[1] == width:
        return [1]
    if tensor.dim() == 4 and tensor.shape[3] == width and tensor.shape[2] in (1, width):
        return [2, 3] if tensor.shape[2] == width else [3]
    return []


def pooled(window: Sequence[Any], lengths: Any, pad: Any, *, raw: bool) -> Any:
    """Put the batches of a window together, padded to the longest.

    Raises:
        OptionError: batches have different widths, and with what they are padded cannot be told.
    """
    if raw:
        return [sample for batch in window for sample in batch]
    each = [None if lengths is None else lengths_of(lengths, batch) for batch in window]
    width = max((one.width for one in each if one is not None), default=0)
    columns = list(zip(*map(_parts, window), strict=True))
    joined: list[Any] = []
    for place, parts in enumerate(columns):
        if not isinstance(parts[0], Tensor):
            joined.append([item for part in parts for item in part])
            continue
        if any(one is not None and one.width != width for one in each):
            value = functools.partial(_pad_value, place, parts, each, window[0], pad)
            parts = tuple(_padded(*pair, width, value) for pair in zip(parts, each, strict=True))
        joined.append(torch.cat(parts))
    values = iter(joined)
    return mapped(window[0], lambda _: next(values))


def _parts(nest: Any) -> list[Any]:
    """Return the tensors and sample lists of a nest, in order."""
    found: list[Any] = []

    def note(part: Any) -> Any:
        found.append(part)
        return part

    mapped(nest, note)
    return found


def _padded(tensor: Tensor, known: Lengths | None, width: int, value: Callable[[], Any]) -> Tensor:
    if known is None or known.width in (0, width):
        return tensor
    for dim in _length_dims(tensor, known.width):
        room = width - known.width
        before, after = (room, 0) if known.left else (0, room)
        tensor = F.pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [before, after], value=value())
    return tensor


def _pad_value(
    place: int, parts: Sequence[Tensor], each: Sequence[Lengths | None], batch: Any, pad: Any
) -> Any:
    """Return what a tensor is padded with: as it was said, or as its padding shows."""
    if isinstance(pad, Mapping):
        names = _names(batch)
        if names[place] in pad:
            return pad[names[place]]
    elif pad is not None:
        return pad
    for tensor, known in zip(parts, each, strict=True):
        if known is not None and known.mask is not None and tensor.shape[:2] == known.mask.shape:
            rest = tensor[~known.mask]
            if len(rest):
                return rest.reshape(-1)[0].item()
    raise OptionError(
        f"plan: batches of different widths are pooled, and nothing shows with what tensor {place} of them is "
        'padded. Say it: pad={"labels": -100, "input_ids": 0}, or one number for all.'
    )


def _names(batch: Any) -> list[Any]:
    """Return what each part of a batch is called: its key, or its place."""
    if isinstance(batch, Mapping):
        return [key for key, value in batch.items() for _ in _parts(value)]
    return list(range(len(_parts(batch))))
