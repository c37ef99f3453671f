"""Reads a batch as samples: their lengths, and some of them without their padding.

Trimming is exact if it removes nothing but padding. Fields that the caller names are trimmed. Ids, labels and masks
are also trimmed if their data shows the padding: a single value beyond the samples' lengths. Any other field of the
same width (features, an image, position ids) is an error. So is padding on the left: trimming it moves samples to
other columns, and many models use column numbers as positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradgate.batch_layout import (
    NOT_GIVEN,
    BatchDim,
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
from gradgate.pytree import value_at

Collate = Callable[[list[Any]], Any]

Dims: TypeAlias = "dict[Path, tuple[int, ...]]"
"""The dimensions along which each field is trimmed."""

Trim: TypeAlias = "Iterable[Any] | Mapping[Any, int | tuple[int, ...]] | None"
"""Fields by key, index or path, or a mapping to their dimensions. None: the fields that are visibly padded."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of the samples, as far as they are known.

    Attributes:
        values: the number of columns that each sample needs, at least 1.
        counts: the number of valid items in each sample; gaps do not count.
        width: the number of columns that all samples have; 0 if unknown.
        left: whether samples are padded on the left.
        source: the mask or the lengths that the caller gave.
    """

    values: list[int]
    counts: list[int]
    width: int
    left: bool = False
    source: Any = None

    def padding(self, device: torch.device) -> Tensor:
        """Return which columns are beyond the end of a sample, ``[samples, width]``."""
        columns = torch.arange(self.width, device=device)
        sizes = torch.tensor(self.values, device=device)[:, None]
        return columns < self.width - sizes if self.left else columns >= sizes


@dataclass(frozen=True)
class BatchOptions:
    """How a caller's batches are read; the options of :func:`plan`."""

    lengths: Any = None
    collate: Collate | None = None
    batch_dim: BatchDim | NotGiven = NOT_GIVEN
    trim: Trim = None


class Samples:
    """A batch, read as samples. An earlier batch, ``like``, shows how to read lists and padded fields.

    Raises:
        OptionError: the batch has no samples, or does not show where they are.
    """

    def __init__(self, batch: Any, options: BatchOptions, like: Samples | None = None) -> None:
        self.batch, self._collate = batch, options.collate
        if not self.collates and isinstance(options.batch_dim, NotGiven):
            check_batch(
                batch, "plan", "accumulator.step_window(loss_fn, window), or join them into one batch"
            )
        source = None
        if options.lengths is not None:
            source = _source_of(options.lengths, batch, collates=self.collates)
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
            self.lengths = _lengths_of(source, self.count)
            if not self.collates:
                known = like.dims if like is not None and like.dims else None
                self.lengths, self.dims = _dims_to_trim(
                    batch, self.layout, self.lengths, options.trim, known=known
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


def _source_of(lengths: Any, batch: Any, *, collates: bool = False) -> Any:
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


def _lengths_of(source: Any, samples: int) -> Lengths:
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
    return Lengths(values, counts, width, left, source)


def _of_lengths(values: Tensor, source: Any) -> Lengths:
    lengths = [int(each) for each in values.tolist()]
    if min(lengths, default=0) < 0:
        raise OptionError(
            f"plan: sample {lengths.index(min(lengths))} has length {min(lengths)}. A length is a number of "
            "columns from the left: give 0 or more for each sample."
        )
    return Lengths([max(each, 1) for each in lengths], lengths, 0, source=source)


@dataclass(frozen=True)
class _Field:
    """A field with columns, along the first dimension other than ``dim``, that of its samples."""

    value: Any
    dim: int

    @property
    def column(self) -> int:
        return 1 if self.dim == 0 else 0

    @property
    def columns(self) -> int:
        return int(self.value.shape[self.column])

    @property
    def rows(self) -> Tensor:
        """``[samples, columns, ...]``"""
        return torch.as_tensor(self.value).movedim((self.dim, self.column), (0, 1))

    def is_ids(self) -> bool:
        """Return whether each column holds one integer, or 0 or 1: ids, labels, a mask."""
        rows = self.rows
        if rows.dim() != 2:
            return False
        return not (rows.is_floating_point() or rows.is_complex()) or bool(((rows == 0) | (rows == 1)).all())

    def along(self, width: int) -> list[int]:
        """Return the dimensions of this size, except the samples' dimension."""
        return [dim for dim, size in enumerate(self.value.shape) if size == width and dim != self.dim]

    def shows(self, lengths: Lengths) -> bool:
        """Return whether these are ids that hold a single value beyond the samples' lengths: their padding."""
        if not self.is_ids():
            return False
        rows, padding = self.rows, lengths.padding(torch.as_tensor(self.value).device)
        beyond, inside = rows[padding], rows[~padding]
        if not beyond.numel():
            return True
        value = beyond[0]
        return _is_constant(beyond) and (bool(value == 0) or not bool((inside == value).all()))


def _dims_to_trim(
    batch: Any, layout: Layout, lengths: Lengths, trim: Trim, *, known: Dims | None
) -> tuple[Lengths, Dims]:
    """Return the lengths, with their width filled in, and the dimensions to trim.

    ``known`` are the dimensions of an earlier batch; exactly these are trimmed.

    Raises:
        OptionError: the data does not show which fields are padded.
    """
    fields = {
        path: _Field(value, dim)
        for path, dim in layout.fields().items()
        if isinstance(dim, int) and is_array(value := value_at(batch, path)) and value.ndim > 1
    }
    if trim is not None:
        return _named(fields, lengths, trim)
    width = lengths.width or _width(fields, max(lengths.values))
    lengths = replace(lengths, width=width)
    if not width or min(lengths.values) >= width:
        return lengths, {}
    for path, field in fields.items():
        _refuse_inverted(path, field, lengths)
    if lengths.left:
        raise OptionError(
            "plan: lengths shows padding on the left, so trimming moves samples to other columns. This is exact if "
            "the model takes positions from the mask or from position_ids, and wrong if it counts columns. To "
            "trim anyway, name the fields: trim=[...]; to trim nothing, trim=()."
        )
    dims: Dims = {}
    unclear: list[Path] = []
    for path, field in fields.items():
        along = field.along(width)
        if known is not None and path not in known:
            continue
        if known is not None and along != list(known[path]):
            raise OptionError(
                f"plan: {field_name(path)} should be trimmed to the samples' lengths, but has {field.columns} "
                f"columns, not {width}. If it should not be trimmed, name the fields to trim: trim=[...]."
            )
        if along == [field.column] and (field.value is lengths.source or field.shows(lengths)):
            dims[path] = (field.column,)
        elif along:
            unclear.append(path)
    if unclear:
        names = ", ".join(map(key_of, dims))
        and_this = ", ".join(map(key_of, [*dims, unclear[0]]))
        raise OptionError(
            f"plan: {field_name(unclear[0])} has size {width}, like the samples' columns, but its data does not "
            f"show which part is padding. If it is padded, pass trim=[{and_this}]; if not, trim=[{names}]. Add "
            "any other field that should be trimmed; trim=() trims nothing."
        )
    return lengths, dims


def _width(fields: Mapping[Path, _Field], longest: int) -> int:
    """Return the only width of fields that are as wide as the longest sample; 0 if there is none."""
    widths = {field.columns for field in fields.values() if field.columns >= longest}
    if len(widths) > 1:
        names = ", ".join(f"{field_name(path)} ({field.columns})" for path, field in fields.items())
        raise OptionError(
            f"plan: cannot tell which of these fields lengths= refers to: {names}. Name the fields whose padding "
            "should be trimmed: trim=[...]; or trim=() to trim nothing."
        )
    return widths.pop() if widths else 0


def _named(fields: Mapping[Path, _Field], lengths: Lengths, trim: Any) -> tuple[Lengths, Dims]:
    given = dict(trim) if isinstance(trim, Mapping) else dict.fromkeys(trim)
    given = {key if isinstance(key, tuple) else (key,): dims for key, dims in given.items()}
    for path in given:
        if path not in fields:
            names = ", ".join(map(field_name, fields)) or "none"
            raise OptionError(
                f"plan: trim names {field_name(path)}, but the fields with samples and columns are: {names}."
            )
    if not given:
        for path, field in fields.items():
            _refuse_inverted(path, field, lengths)  # it would count padding
        width = lengths.width or max(lengths.values, default=0)
        return replace(lengths, values=[width] * len(lengths.values), width=width), {}
    dims: Dims = {}
    width = lengths.width
    for path, named in given.items():
        field = fields[path]
        chosen = (named,) if isinstance(named, int) else named
        width = width or int(field.value.shape[chosen[0] if chosen else field.column])
        along = field.along(width)
        if chosen is None and len(along) > 1:
            raise OptionError(
                f"plan: {field_name(path)} has size {width} along dimensions {along}. Say which are "
                f"trimmed: trim={{{key_of(path)}: {along[0]}}}, or a tuple of them."
            )
        if not along or not set(chosen or ()) <= set(along):
            raise OptionError(
                f"plan: trim names {field_name(path)}, of shape {list(field.value.shape)}, but the samples have "
                f"{width} columns. Name fields with {width} columns."
            )
        dims[path] = tuple(chosen or along)
    if max(lengths.values, default=0) > width:
        raise OptionError(
            f"plan: a sample has length {max(lengths.values)}, but its fields have {width} columns. Pass the "
            "lengths of the fields in trim."
        )
    lengths = replace(lengths, width=width)
    for path in dims:
        _refuse_inverted(path, fields[path], lengths, named=True)
    return lengths, dims


def _refuse_inverted(path: Path, field: _Field, lengths: Lengths, *, named: bool = False) -> None:
    """Raise OptionError if the data shows that the mask is True for padding."""
    if field.columns != lengths.width or field.value is lengths.source or not (named or field.is_ids()):
        return
    mask = torch.as_tensor(lengths.source)
    if mask.dim() != 2:
        if field.shows(replace(lengths, left=True)) and not field.shows(lengths):
            raise OptionError(
                f"plan: lengths counts columns from the left, but {field_name(path)} is padded on the left. Pass a "
                "mask that is True where items are valid."
            )
        return
    rows, valid = field.rows, (mask != 0).to(field.rows.device)
    inside, outside = rows[valid], rows[~valid]
    if not inside.numel() or not outside.numel():
        return
    if _is_constant(inside) and bool((outside != inside.flatten()[0]).all()) and not _is_constant(outside):
        raise OptionError(
            f"plan: lengths marks the padding: {field_name(path)} holds a single value where the mask is True, and "
            "varies elsewhere. Pass a mask that is True where items are valid, such as "
            "lengths=lambda batch: ~batch[...]."
        )


def _is_constant(values: Tensor) -> bool:
    return bool((values == values.flatten()[0]).all())
