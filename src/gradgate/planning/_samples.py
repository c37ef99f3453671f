"""Selects samples of a batch, trims their padding, and pools several batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradgate.batch_layout import (
    NOT_GIVEN,
    BatchDim,
    FieldDim,
    Layout,
    NotGiven,
    Path,
    check_batch,
    field_name,
    is_array,
    key_of,
    layout_of,
)
from gradgate.errors import OptionError
from gradgate.planning._lengths import Lengths, lengths_of, source_of
from gradgate.planning._trim import Dims, Trim, dims_to_trim
from gradgate.pytree import children, value_at

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class BatchOptions:
    """How a caller's batches are read; the options of :func:`plan`."""

    lengths: Any = None
    collate: Collate | None = None
    batch_dim: BatchDim | NotGiven = NOT_GIVEN
    trim: Trim = None
    pad: Any = None


class Samples:
    """A batch, read as samples. An earlier batch, ``like``, shows how to read lists and padded fields.

    With ``even_if_full``, the fields to trim are found even if no sample is shorter than the others.

    Raises:
        OptionError: the batch has no samples, or does not show where they are.
    """

    def __init__(
        self, batch: Any, options: BatchOptions, like: Samples | None = None, *, even_if_full: bool = False
    ) -> None:
        self.batch, self._collate = batch, options.collate
        if not self.collates and isinstance(options.batch_dim, NotGiven):
            check_batch(batch, "plan", "plan.pool(window), which joins them into one batch")
        source = None
        if options.lengths is not None:
            source = source_of(options.lengths, batch, collates=self.collates)
        if self.collates:
            self.layout = Layout(len(batch), {(): "list"})
        else:
            self.layout = layout_of(
                batch, options.batch_dim, None if like is None else like.layout, certain=source
            )
        self.count = self.layout.samples
        if not self.count:
            raise OptionError("plan: the batch has no samples. Pass one with at least one sample.")
        self.lengths: Lengths | None = None
        self.dims: Dims = {}
        if options.lengths is not None:
            self.lengths = lengths_of(source, self.count)
            if not self.collates:
                known = like.dims if like is not None and like.dims else None
                self.lengths, self.dims = dims_to_trim(
                    batch, self.layout, self.lengths, options.trim, known=known, even_if_full=even_if_full
                )

    @property
    def collates(self) -> bool:
        """Whether the batch is a list of samples that are yet to be collated."""
        return self._collate is not None

    @property
    def copies(self) -> bool:
        """Whether selecting samples copies them."""
        return self.lengths is not None or self.collates

    def take(self, indices: Sequence[int], length: int = 0) -> Any:
        """Return some samples as a batch of the same types, trimmed to a length (0: not at all)."""
        if self._collate is not None:
            return self._collate([self.batch[index] for index in indices])
        chosen: slice | list[int] = list(indices)
        if not self.copies and chosen == list(range(indices[0], indices[0] + len(indices))):
            chosen = slice(indices[0], indices[0] + len(indices))  # a view
        trimmed = self.layout.mapped(self.batch, lambda path, field, _: self._trimmed(path, field, length))
        return self.layout.take(trimmed, chosen)

    def _trimmed(self, path: Path, field: Any, length: int) -> Any:
        dims, lengths = self.dims.get(path), self.lengths
        if not length or dims is None or lengths is None or length >= lengths.width:
            return field
        columns = slice(lengths.width - length, None) if lengths.left else slice(length)
        return field[tuple(columns if dim in dims else slice(None) for dim in range(field.ndim))]

    @property
    def kind(self) -> str:
        """The fields and their dimensions, or the type of the raw samples, in words. A plan is for one kind."""
        if self.collates:
            return f"raw samples of the type {type(self.batch[0]).__name__}"
        shown = {
            path: "a list" if dim == "list" else f"{value_at(self.batch, path).ndim}-dimensional"
            for path, dim in self.layout.fields().items()
        }
        return ", ".join(f"{field_name(path)} ({dims})" for path, dims in shown.items())


def pooled(window: Sequence[Samples], pad: Any) -> Any:
    """Return one batch with all samples of several batches of one kind, padded to the longest.

    ``pad`` is the padding value, if the batches' own padding does not show it: a number, or one for each field.

    Raises:
        OptionError: batches have different widths, or their shared values differ.
    """
    first = window[0]
    for other in window[1:]:
        _check_shared(first.batch, other.batch, (), first.layout)
    widths = {samples.lengths.width for samples in window if samples.lengths is not None}
    dims: Dims = {path: along for samples in window for path, along in samples.dims.items()}

    def joined(path: Path, _: Any, dim: FieldDim) -> Any:
        parts = [value_at(samples.batch, path) for samples in window]
        if dim == "list":
            return type(parts[0])(item for part in parts for item in part)
        if len(widths) > 1 and path in dims:
            value = _padding_value(path, window, pad)
            pairs = zip(parts, window, strict=True)
            parts = [_padded(part, dims[path], samples, max(widths), value) for part, samples in pairs]
        shapes = {(*part.shape[: int(dim or 0)], *part.shape[int(dim or 0) + 1 :]) for part in parts}
        if len(shapes) > 1:
            raise OptionError(
                f"pool: the sizes of {field_name(path)} differ: {sorted(shapes)}. To have the batches padded "
                "to one width, make the plan with lengths=, and name the field in trim=."
            )
        concatenate = torch.cat if isinstance(parts[0], Tensor) else sys.modules["numpy"].concatenate
        return concatenate(parts, int(dim or 0))

    return first.layout.mapped(first.batch, joined)


def _check_shared(value: Any, other: Any, path: Path, layout: Layout) -> None:
    """Raise OptionError if two batches differ in a value that all samples of a batch share."""
    if path in layout.fields():
        return
    inside = children(value)
    if inside is None and not _equal(value, other):
        raise OptionError(
            f"pool: {field_name(path)} is shared by the samples of each batch, but differs between batches. "
            "Give each sample its own value, in a tensor or list as long as the batch."
        )
    for key, item in inside or ():
        _check_shared(item, value_at(other, (key,)), (*path, key), layout)


def _equal(value: Any, other: Any) -> bool:
    if is_array(value) or isinstance(value, Tensor):
        return type(value) is type(other) and value.shape == other.shape and bool((value == other).all())
    return value is other or bool(value == other)


def _padded(part: Any, dims: tuple[int, ...], samples: Samples, width: int, value: Any) -> Any:
    lengths = samples.lengths
    if lengths is None or lengths.width == width:
        return part
    sizes = [0] * (2 * part.ndim)  # before and after each dimension, the last dimension first
    for dim in dims:
        sizes[2 * (part.ndim - 1 - dim) + (not lengths.left)] = width - lengths.width
    tensor = F.pad(torch.as_tensor(part), sizes, value=value)
    return tensor if isinstance(part, Tensor) else tensor.numpy()


def _padding_value(path: Path, window: Sequence[Samples], pad: Any) -> Any:
    """Return the padding value of a field: the given one, or one read from the field's padding."""
    if isinstance(pad, Mapping):
        if path in pad or (len(path) == 1 and path[0] in pad):
            return pad[path] if path in pad else pad[path[0]]
    elif pad is not None:
        return pad
    for samples in window:
        lengths = samples.lengths
        if lengths is not None and lengths.width:
            value = torch.as_tensor(value_at(samples.batch, path))
            dim, column = samples.layout.dims[path], samples.dims.get(path, (1,))[0]
            rows = value.movedim((dim, column), (0, 1))
            beyond = rows[lengths.padding(rows.device)]
            if beyond.numel():
                return beyond.flatten()[0].item()
    raise OptionError(
        f"pool: these batches have different widths, and nothing shows the padding value of {field_name(path)}. "
        f"Pass it: pad={{{key_of(path)}: 0}}, or one number for all."
    )
