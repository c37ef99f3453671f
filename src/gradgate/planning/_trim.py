"""Finds the fields of a batch whose padding can be trimmed with the lengths of its samples.

Trimming is exact if it removes nothing but padding. Fields that the caller names are trimmed. In other fields, the
padding must be recognizable: a single repeated value beyond the samples' lengths. That is enough for ids, labels
and masks; in any other field, the padding must also start exactly there. A field of the same width without
recognizable padding (an image, position ids) is an error. So is padding on the left: trimming it moves samples
to other columns, and many models use column numbers as positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradgate.batch_layout import Layout, Path, field_name, is_array, key_of
from gradgate.errors import OptionError
from gradgate.planning._lengths import Lengths
from gradgate.pytree import value_at

Dims: TypeAlias = "dict[Path, tuple[int, ...]]"
"""The dimensions along which each field is trimmed."""

Trim: TypeAlias = "Iterable[Any] | Mapping[Any, int | tuple[int, ...]] | None"
"""Fields by key, index or path, or a mapping to their dimensions. None: the fields that are visibly padded."""


def dims_to_trim(
    batch: Any, layout: Layout, lengths: Lengths, trim: Trim, *, known: Dims | None, even_if_full: bool
) -> tuple[Lengths, Dims]:
    """Return the lengths, with their width filled in, and the dimensions to trim.

    ``known`` are the dimensions of an earlier batch; exactly these are trimmed. With ``even_if_full``, fields are
    found even if no sample is shorter than the width.

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
    width = lengths.width or _width(fields, lengths)
    lengths = replace(lengths, width=width)
    if not width or (min(lengths.values, default=0) >= width and not even_if_full):
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
        if known is not None and path not in known:
            continue
        along = field.along(width)
        if known is not None and along != list(known[path]):
            raise OptionError(
                f"plan: {field_name(path)} should be trimmed to the samples' lengths, but has {field.columns} "
                f"columns, not {width}. If it should not be trimmed, name the fields to trim: trim=[...]."
            )
        if not along:
            continue
        if along == [field.column] and (field.value is lengths.source or field.shows(lengths)):
            dims[path] = (field.column,)
        else:
            unclear.append(path)
    if unclear:
        names = ", ".join(map(key_of, dims))
        and_this = ", ".join(map(key_of, [*dims, unclear[0]]))
        raise OptionError(
            f"plan: {field_name(unclear[0])} has size {width}, like the samples' columns, but shows no padding "
            f"beyond the samples' lengths. If it is padded, pass trim=[{and_this}]; if not, trim=[{names}]. Add "
            "any other field that should be trimmed; trim=() trims nothing."
        )
    return lengths, dims


class _Field:
    """A field with columns.

    Attributes:
        value: the array.
        dim: the dimension of its samples.
        column: the dimension of its columns, which is the first dimension other than ``dim``.
    """

    def __init__(self, value: Any, dim: int) -> None:
        self.value, self.dim = value, dim
        self.column = 1 if dim == 0 else 0

    @property
    def columns(self) -> int:
        return int(self.value.shape[self.column])

    @property
    def rows(self) -> Tensor:
        """``[samples, columns, ...]``"""
        return torch.as_tensor(self.value).movedim((self.dim, self.column), (0, 1))

    @property
    def is_ids(self) -> bool:
        """Whether each column holds one integer, or 0 or 1: ids, labels, a mask."""
        rows = self.rows
        if rows.dim() != 2:
            return False
        return not (rows.is_floating_point() or rows.is_complex()) or bool(((rows == 0) | (rows == 1)).all())

    def along(self, width: int) -> list[int]:
        """Return the dimensions of this size, except the samples' dimension."""
        return [dim for dim, size in enumerate(self.value.shape) if size == width and dim != self.dim]

    def shows(self, lengths: Lengths) -> bool:
        """Return whether the data beyond the samples' lengths is recognizably padding."""
        rows = self.rows
        padding = lengths.padding(rows.device)
        beyond = rows[padding]
        if not beyond.numel():
            return self.is_ids
        value = beyond.flatten()[0]
        if not _is_constant(beyond):
            return False
        if self.is_ids:
            inside = rows[~padding if lengths.mask is None else lengths.mask.to(rows.device)]
            return bool(value == 0) or not bool((inside == value).all())
        last = torch.tensor([each - 1 for each in lengths.values], device=rows.device)
        shorter = last < lengths.width - 1
        ends = rows[shorter, last[shorter]][:, None].flatten(1)  # a column may be a single number
        return len(set(last[shorter].tolist())) > 1 and bool((ends != value).any(1).all())


def _width(fields: Mapping[Path, _Field], lengths: Lengths) -> int:
    """Return the width of the fields that show these lengths; 0 if no field is as wide as the longest sample."""
    longest = max(lengths.values, default=0)
    widths = {field.columns for field in fields.values() if field.columns >= longest}
    if longest in widths and min(lengths.values) == longest:
        return longest
    shown = {
        field.columns
        for field in fields.values()
        if field.columns in widths and field.shows(replace(lengths, width=field.columns))
    }
    for path, field in fields.items():
        for width in widths - shown:
            _refuse_inverted(path, field, replace(lengths, width=width))
    if len(shown or widths) > 1 or (widths and not shown):
        names = ", ".join(f"{field_name(path)} ({field.columns})" for path, field in fields.items())
        raise OptionError(
            "plan: cannot tell from the padding which of these fields lengths= refers to: "
            f"{names}. Name the fields whose padding should be trimmed: trim=[...]; or trim=() to trim nothing."
        )
    return shown.pop() if shown else 0


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
    if field.columns != lengths.width or field.value is lengths.source or not (named or field.is_ids):
        return
    if lengths.mask is None:
        if field.shows(replace(lengths, left=True)) and not field.shows(lengths):
            raise OptionError(
                f"plan: lengths counts columns from the left, but {field_name(path)} is padded on the left. Pass a "
                "mask that is True where items are valid."
            )
        return
    rows, mask = field.rows, lengths.mask.to(field.rows.device)
    inside, outside = rows[mask], rows[~mask]
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
