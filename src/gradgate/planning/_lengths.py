"""Reads the lengths of a batch's samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradgate.errors import OptionError


@dataclass(frozen=True)
class Lengths:
    """The lengths of the samples, as far as they are known.

    Attributes:
        values: the number of columns that each sample needs, at least 1.
        counts: the number of valid items in each sample; gaps do not count.
        width: the number of columns that all samples have; 0 if unknown.
        left: whether samples are padded on the left.
        mask: which items are valid, ``[samples, width]``; None if only lengths were given.
        source: the tensor that the lengths were read from.
    """

    values: list[int]
    counts: list[int]
    width: int
    left: bool = False
    mask: Tensor | None = None
    source: Any = None

    def padding(self, device: torch.device) -> Tensor:
        """Return which columns are beyond the end of a sample, ``[samples, width]``."""
        columns = torch.arange(self.width, device=device)
        sizes = torch.tensor(self.values, device=device)[:, None]
        return columns < self.width - sizes if self.left else columns >= sizes


def source_of(lengths: Any, batch: Any, *, collates: bool = False) -> Any:
    """Return what holds the lengths: a mask ``[samples, columns]`` or lengths ``[samples]``.

    ``lengths`` is this source itself, the batch's key for it, or a function that takes the batch (or one sample, if
    samples are not collated yet).

    Raises:
        OptionError: there is no such key.
    """
    source = lengths
    if isinstance(source, str):
        if not isinstance(batch, Mapping) or source not in batch:
            is_mapping = isinstance(batch, Mapping)
            keys = ", ".join(map(repr, batch)) if is_mapping else f"it is a {type(batch).__name__}"
            raise OptionError(
                f"plan: lengths names the key {source!r}, which the batch does not have ({keys}). Pass one of its "
                "keys, or a function: lengths=lambda batch: batch[1]."
            )
        source = batch[source]
    elif callable(source):
        source = [source(sample) for sample in batch] if collates else source(batch)
    return source


def lengths_of(source: Any, samples: int) -> Lengths:
    """Return the lengths of a batch's samples.

    Raises:
        OptionError: the source is neither a mask nor lengths of this batch.
    """
    values = source if isinstance(source, Tensor) else torch.as_tensor(_array_like(source))
    if values.dim() not in (1, 2) or values.dtype.is_complex or len(values) != samples:
        raise OptionError(
            f"plan: lengths has shape {list(values.shape)}, but the batch has {samples} samples. Give one length "
            "for each sample, or a mask of shape [samples, columns]."
        )
    return _of_mask(values, source) if values.dim() == 2 else _of_lengths(values, source)


def _array_like(source: Any) -> Any:
    if isinstance(source, Sequence) and all(isinstance(each, (int, Tensor)) for each in source):
        return [int(each) for each in source]
    if hasattr(source, "__array__"):
        return source
    raise OptionError(
        f"plan: lengths is of type {type(source).__name__}. Pass a mask, a list of lengths, a key, or a function "
        "that returns one of these."
    )


def _of_mask(mask: Tensor, source: Any) -> Lengths:
    valid = mask != 0
    width = valid.shape[1]
    columns = torch.arange(width, device=mask.device)
    ends = torch.where(valid, columns + 1, 0).amax(1).tolist()
    starts = torch.where(valid, columns, width).amin(1).tolist()
    left = all(end in (width, 0) for end in ends) and any(0 < start < width for start in starts)
    values = [width - start for start in starts] if left else ends
    counts = valid.sum(1).tolist()
    # A sample without a valid item (its labels may all be ignored) does not show which columns are padding.
    values = [value if count else width for value, count in zip(values, counts, strict=True)]
    return Lengths(values, counts, width, left, valid, source)


def _of_lengths(values: Tensor, source: Any) -> Lengths:
    lengths = [int(each) for each in values.tolist()]
    if min(lengths, default=0) < 0:
        raise OptionError(
            f"plan: sample {lengths.index(min(lengths))} has length {min(lengths)}. A length is a number of "
            "columns from the left: give 0 or more for each sample."
        )
    return Lengths([max(each, 1) for each in lengths], lengths, 0, source=source)
