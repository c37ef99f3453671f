"""How long the samples of a batch are, and on which side they are padded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradgate.errors import OptionError
from gradgate.nests import sample_count, tensors_in


@dataclass(frozen=True)
class Lengths:
    """What is known of the samples' lengths.

    Attributes:
        values: columns that each sample needs.
        counts: valid items of each sample: what its length is without gaps.
        width: columns that all have; 0 where there are none to be trimmed.
        left: samples are padded on the left.
        mask: which items are valid, ``[samples, width]``; None where only lengths were given.
    """

    values: list[int]
    counts: list[int]
    width: int
    left: bool = False
    mask: Tensor | None = None


def lengths_of(source: Any, batch: Any, *, raw: bool = False) -> Lengths:
    """Return the lengths of a batch's samples.

    Args:
        source: a mask ``[samples, columns]``, lengths ``[samples]``, the key under which a batch has one of
            these, or a function of a batch (of a sample, where it is raw).
        batch: what the lengths are of.
        raw: the batch is a list of samples that are yet to be collated.

    Raises:
        OptionError: there is no such key, or what is found there is no mask and no lengths of this batch.
    """
    if isinstance(source, str):
        if not isinstance(batch, Mapping) or source not in batch:
            keys = (
                ", ".join(map(repr, batch))
                if isinstance(batch, Mapping)
                else f"it is a {type(batch).__name__}"
            )
            raise OptionError(
                f"plan: lengths names the key {source!r}, and the batch has none such ({keys}). Pass a key that it "
                "has, or a function: lengths=lambda batch: batch[1]."
            )
        source = batch[source]
    elif callable(source):
        source = [source(sample) for sample in batch] if raw else source(batch)
    values = source if isinstance(source, Tensor) else torch.as_tensor(_numbers(source))
    samples = len(batch) if raw else sample_count(batch)
    if values.dim() not in (1, 2) or values.dtype.is_complex or len(values) != samples:
        raise OptionError(
            f"plan: lengths has shape {list(values.shape)} and the batch {samples} samples. Give one length for "
            "each sample, or a mask of shape [samples, columns]."
        )
    return _of_mask(values) if values.dim() == 2 else _of_numbers(values, () if raw else batch)


def _numbers(source: Any) -> list[int]:
    if isinstance(source, Sequence) and all(isinstance(one, (int, Tensor)) for one in source):
        return [int(one) for one in source]
    raise OptionError(
        f"plan: lengths is a {type(source).__name__}; it is a mask, a list of lengths, a key, or a function that "
        "returns one of these."
    )


def _of_mask(mask: Tensor) -> Lengths:
    valid = mask != 0
    width = valid.shape[1]
    columns = torch.arange(width, device=mask.device)
    ends = torch.where(valid, columns + 1, 0).amax(1).tolist() if width else [0] * len(valid)
    starts = torch.where(valid, columns, width).amin(1).tolist() if width else [0] * len(valid)
    left = all(end in (width, 0) for end in ends) and any(0 < start < width for start in starts)
    values = [width - start for start in starts] if left else ends
    return Lengths([max(one, 1) for one in values], valid.sum(1).tolist(), width, left, valid)


def _of_numbers(values: Tensor, batch: Any) -> Lengths:
    lengths = [int(one) for one in values.tolist()]
    widths = Counter(tensor.shape[1] for tensor in tensors_in(batch) if tensor.dim() > 1)
    fitting = [width for width in widths if width >= max(lengths, default=0)]
    width = min(fitting, default=0)
    if min(lengths, default=0) < 0:
        raise OptionError(
            f"plan: sample {lengths.index(min(lengths))} has the length {min(lengths)}. A length counts "
            "columns from the left: give 0 or more for each sample."
        )
    return Lengths([max(one, 1) for one in lengths], lengths, width)
