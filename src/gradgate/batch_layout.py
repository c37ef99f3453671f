"""Finds the samples in a batch, and selects some of them.

A batch is a pytree. Its parts are read and split as follows:

- A tensor or numpy array holds the samples along dimension 0, or along the dimension that ``batch_dim`` names.
- A mapping, named tuple or dataclass is a record of fields. Each field holds all samples.
- A list or tuple of numbers, strings or other objects has one entry per sample.
- A list or tuple of tensors, lists or records is read as fields or as one entry per sample, whichever agrees with
  the rest of the batch. The batch itself is a record of fields, as a ``DataLoader`` yields it.
- A number, a string, None or a 0-dimensional tensor is shared by all samples.

A part that can be read in no way, or in two ways, raises an error that names its field. So does a tensor that may
be shared by all samples although it is as long as the batch.
"""

from __future__ import annotations

import enum
import itertools
import numbers
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from gradgate.errors import OptionError
from gradgate.pytree import Attribute, children, has_path, value_at, with_children

T = TypeVar("T")
Path: TypeAlias = "tuple[Any, ...]"

FieldDim: TypeAlias = 'int | Literal["list"] | None'
"""Where a field holds its samples: a tensor's dimension, "list" for one entry per sample, None if all share it."""


class NotGiven(enum.Enum):
    """The type of ``NOT_GIVEN``, the default of options for which None has a meaning of its own."""

    NOT_GIVEN = "nothing"


NOT_GIVEN = NotGiven.NOT_GIVEN

BatchDim: TypeAlias = "FieldDim | Mapping[Any, FieldDim]"
"""The dimension for the whole batch, or one per field; a field is a key, an index, or a tuple of these."""

_FIELDS, _EITHER = (
    "fields",
    "either",
)  # dims of a list that is a record, and of one that may also hold samples
_SHARED = (type(None), str, bytes, numbers.Number, enum.Enum, torch.dtype, torch.device, slice)


@dataclass(frozen=True)
class Layout:
    """Where a batch holds its samples.

    Attributes:
        samples: the number of samples.
        dims: each array's dimension, or "list" for a list with one entry per sample; "fields" for lists that are
            records. Shared values are omitted.
    """

    samples: int
    dims: Mapping[Path, Any] = field(default_factory=dict)

    def fields(self) -> dict[Path, FieldDim]:
        """Return the fields that hold samples."""
        return {path: dim for path, dim in self.dims.items() if dim != _FIELDS}

    def mapped(self, batch: T, change: Callable[[Path, Any, FieldDim], Any], path: Path = ()) -> T:
        """Return a batch of the same structure, with each field replaced by ``change(path, value, dim)``."""
        dim = self.dims.get(path, _FIELDS)
        if dim != _FIELDS:
            return change(path, batch, dim)  # type: ignore[no-any-return]
        inside = children(batch)
        if not inside or not any(each[: len(path)] == path for each in self.dims):
            return batch
        items = [self.mapped(item, change, (*path, key)) for key, item in inside]
        result: Any = with_children(batch, items)
        # transformers' BatchEncoding holds per-sample tokenizer data next to the tensors.
        encodings = getattr(batch, "_encodings", None)
        if isinstance(encodings, list) and len(encodings) == self.samples:
            result._encodings = change((*path, Attribute("encodings")), encodings, "list")
        return result  # type: ignore[no-any-return]

    def where(self) -> str:
        """Return where the first field holds its samples, as text."""
        path, dim = next(iter(self.fields().items()))
        return ("as the entries" if dim == "list" else f"along dimension {dim}") + f" of {field_name(path)}"

    def take(self, batch: T, chosen: slice | Sequence[int]) -> T:
        """Return the chosen samples, as a batch of the same structure."""

        def select(_: Path, value: Any, dim: FieldDim) -> Any:
            if dim == "list":
                entries = value[chosen] if isinstance(chosen, slice) else [value[index] for index in chosen]
                return entries if isinstance(entries, type(value)) else type(value)(entries)
            index = chosen if isinstance(chosen, slice) else list(chosen)
            return value[(slice(None),) * int(dim or 0) + (index,)]

        return self.mapped(batch, select)

    def split(self, batch: T, parts: int) -> Iterator[tuple[T, int]]:
        """Yield nearly equal parts of a batch, in order, with their sizes: 10 samples in 3 parts are 4, 3 and 3."""
        edges = [-(-self.samples * part // parts) for part in range(parts + 1)]
        for start, stop in itertools.pairwise(edges):
            yield self.take(batch, slice(start, stop)), stop - start


def layout_of(
    batch: Any, batch_dim: BatchDim | NotGiven = NOT_GIVEN, like: Layout | None = None, certain: Any = None
) -> Layout:
    """Return where a batch holds its samples.

    Args:
        batch: a pytree.
        batch_dim: the caller's option.
        like: the layout of an earlier batch, whose fields were read in the same way.
        certain: a field that certainly holds samples, because the caller has named it as their lengths.

    Raises:
        OptionError: a field can be read in no way, or in two ways.
    """
    given = _by_path(batch, batch_dim)
    if like is not None:
        as_before: dict[Path, FieldDim] = {
            path: "list" if dim == "list" else 0
            for path, dim in like.dims.items()
            if dim in ("list", _FIELDS) and has_path(batch, path)
        }
        given = {**as_before, **given}
    try:
        readings = _readings(batch, (), given, NOT_GIVEN)
    except _UnreadableError as error:
        raise OptionError(str(error)) from None
    if not readings:
        raise OptionError(
            "split: the batch holds no samples: no tensor, and no list with one entry per sample. Pass "
            "tensors with the samples along dimension 0; or a list of samples, and collate=."
        )
    unclear = [path for dims in readings.values() for path, dim in dims.items() if dim in (_FIELDS, _EITHER)]
    if len(readings) > 1:
        raise OptionError(
            f"split: the batch may hold {' or '.join(map(str, sorted(readings)))} samples: "
            f"{field_name(unclear[0])} may be fields, or a list with one entry per sample. Say which: batch_dim=0 "
            'if all tensors hold the samples along dimension 0; batch_dim="list", or {field: "list"}, if a list '
            "has one entry per sample."
        )
    ((samples, dims),) = readings.items()
    for path in unclear:
        if dims[path] == _EITHER:
            key = key_of(path)
            raise OptionError(
                f"split: {field_name(path)} has {samples} entries of size {samples} along dimension 0, which "
                f"may be {samples} fields, or one entry for each of {samples} samples. Say which: "
                f'batch_dim={{{key}: 0}} or batch_dim={{{key}: "list"}}.'
            )
    layout = Layout(samples, dims)
    if like is None and samples > 1:
        _refuse_shared(batch, layout, given, certain)
    return layout


def _by_path(batch: Any, batch_dim: BatchDim | NotGiven) -> dict[Path, FieldDim]:
    if isinstance(batch_dim, NotGiven):
        return {}
    by_key = batch_dim if isinstance(batch_dim, Mapping) else {(): batch_dim}
    given = {key if isinstance(key, tuple) else (key,): dim for key, dim in by_key.items()}
    for path, dim in given.items():
        if not (dim is None or dim == "list" or (type(dim) is int and dim >= 0)):
            raise OptionError(
                f"split: batch_dim is {dim!r} for {field_name(path)}; it must be a dimension, "
                '"list" or None (shared).'
            )
        if not has_path(batch, path):
            inside = ", ".join(repr(key) for key, _ in children(batch) or ()) or "no fields"
            raise OptionError(f"split: batch_dim names {field_name(path)}, but the batch has {inside}.")
    return given


_Readings: TypeAlias = "dict[int, dict[Path, Any]]"
"""Each number of samples that a part of a batch may hold, with the dims of its fields; {} if it is shared."""


class _UnreadableError(Exception):
    """A field that cannot be split into samples."""

    def __init__(self, path: Path, why: str, *, array: bool = False) -> None:
        text = f"split: cannot tell which part of {field_name(path)} belongs to which sample: {why}. "
        if path:
            text += f"If all samples share it, pass batch_dim={{{key_of(path)}: None}}"
            text += (
                f"; if its samples are along another dimension, {{{key_of(path)}: 1}}. " if array else ". "
            )
        super().__init__(text + "For any other layout, pass a list of samples, and collate=.")


def _readings(
    value: Any, path: Path, given: Mapping[Path, FieldDim], inherited: FieldDim | NotGiven
) -> _Readings:
    dim = given.get(path, inherited)
    if dim is None or _is_shared(value):
        return {}
    opaque = _opaque(value)
    if opaque:
        raise _UnreadableError(path, f"it is a {opaque}, which torch cannot slice")
    if is_array(value):
        dim = 0 if isinstance(dim, NotGiven) else dim
        if not isinstance(dim, int) or dim >= value.ndim:
            plural = "s" if value.ndim > 1 else ""
            raise _UnreadableError(path, f"it has {value.ndim} dimension{plural}, not batch_dim={dim!r}")
        return {int(value.shape[dim]): {path: dim}}
    inside = children(value)
    if inside is None:
        raise _UnreadableError(path, f"it is a {type(value).__name__}")
    items = [item for _, item in inside]
    alike = len(set(map(_kind, items))) == 1
    undecided = isinstance(dim, NotGiven) and alike
    if undecided and path == () and isinstance(value, Mapping) and all(type(key) is int for key in value):
        raise _UnreadableError(
            path, "its keys are integers, so its entries may be fields (then pass batch_dim=0) or samples"
        )
    if _is_list(value):
        if not items and dim != "list":
            return {}
        if dim == "list" or not any(map(_may_be_field, items)):
            return {len(items): {path: "list"}}
        # A batch is a record, as a DataLoader yields it; but three or more tensors of one shape may be samples.
        if undecided and path == ():
            undecided = len(items) > 2 and is_array(items[0]) and len({each.shape for each in items}) == 1
        if undecided:
            try:
                record = _record(inside, path, given, dim)
            except _UnreadableError:
                record = {}
            found = {samples: {path: _FIELDS, **dims} for samples, dims in record.items()}
            count = len(items)
            found[count] = {path: "list"} if count not in record else {path: _EITHER}
            if count == 1 and record.get(1):  # of one sample, both are the same
                found[1] = record[1]
            return found
    elif dim == "list":
        raise _UnreadableError(path, f"it is a {type(value).__name__} of {len(items)}, not a list of samples")
    return _record(inside, path, given, dim)


def _record(
    inside: Sequence[tuple[Any, Any]], path: Path, given: Mapping[Path, FieldDim], dim: FieldDim | NotGiven
) -> _Readings:
    """Return the numbers of samples on which all fields of a record agree."""
    parts = [_readings(item, (*path, key), given, dim) for key, item in inside]
    parts = [part for part in parts if part]
    agreed = [samples for samples in parts[0] if all(samples in part for part in parts)] if parts else []
    if parts and not agreed:
        votes = Counter(samples for part in parts for samples in part)
        count = max(votes, key=lambda samples: votes[samples])
        odd, size = next((part, min(part)) for part in parts if count not in part)
        there = next(part[count] for part in parts if count in part)
        (odd_path, along), (other, _) = (
            next((name, dim) for name, dim in dims.items() if dim != _FIELDS) for dims in (odd[size], there)
        )
        what = f"entries along dimension {along}" if isinstance(along, int) else "entries"
        why = f"it has {size} {what}, but {field_name(other)} holds {count} samples"
        raise _UnreadableError(odd_path, why, array=isinstance(along, int))
    return {samples: {k: v for part in parts for k, v in part[samples].items()} for samples in agreed}


def _refuse_shared(batch: Any, layout: Layout, given: Mapping[Path, FieldDim], certain: Any) -> None:
    """Raise OptionError for arrays that all samples may share.

    The sizes of a shared array are sizes of one sample: ``pos_weight [C]`` next to targets ``[samples, C]``, a
    mask ``[T, T]`` or positions ``[T, D]`` next to ``[samples, T, D]``. Floating-point numbers ``[samples]`` may be
    class weights if there are labels, which are integers ``[samples]``. These arrays certainly hold samples:

    - those that the caller has named, and the one with the most dimensions
    - the vector of an ordinary batch ``(x, y)``
    - integers, which are ids or labels, except for the positions 0, 1, 2, ...
    """
    arrays = {path: value_at(batch, path) for path, dim in layout.dims.items() if isinstance(dim, int)}
    arrays = {path: value for path, value in arrays.items() if value is not certain}
    most = max((value.ndim for value in arrays.values()), default=0)
    only_largest = sum(value.ndim == most for value in arrays.values()) == 1
    reasons: dict[Path, str] = {}
    for path, value in arrays.items():
        is_square = set(value.shape) == {layout.samples}
        if any(path[:stop] in given for stop in range(len(path) + 1)):
            continue
        if value.ndim == most and (only_largest or not is_square):
            continue
        if value.ndim == 1 and len(arrays) == 2:
            continue
        if _is_integer(value) and torch.as_tensor(value).tolist() != list(range(len(value))):
            continue
        reason = _reason(value, {name: other for name, other in arrays.items() if name != path}, layout)
        if reason:
            reasons[path] = reason
    if not reasons:
        return
    names = " and ".join(map(field_name, reasons))
    verb = "holds" if len(reasons) == 1 else "hold"
    answer = ", ".join(f"{key_of(path)}: 0" for path in reasons)
    raise OptionError(
        f"split: cannot tell whether {names} {verb} one entry for each of the {layout.samples} samples, or data "
        f"that all samples share: {next(iter(reasons.values()))}. Pass batch_dim={{{answer}}} for one entry per "
        "sample, with None in place of 0 for shared data."
    )


def _reason(value: Any, others: Mapping[Path, Any], layout: Layout) -> str:
    """Return why all samples may share an array; "" if they do not."""
    for path, other in others.items():
        dim = layout.dims[path]
        of_sample = [*other.shape[:dim], *other.shape[dim + 1 :]]
        sizes = iter(of_sample)
        is_square = len(set(value.shape)) == 1
        if (
            value.shape[0] in of_sample if is_square else all(size in sizes for size in value.shape)
        ):  # in order
            where = f"{field_name(path)}, whose shape is {list(other.shape)}"
            return f"{value.shape[0]} is also another size of {where}"
    if value.ndim == 1 and len(others) > 1 and _is_floating(value):
        for path, other in others.items():
            if other.ndim == 1 and _is_integer(other):
                return f"{field_name(path)} may hold labels, and these numbers the weights of the classes"
    return ""


def check_batch(batch: Any, verb: str, several: str, *loaders: type) -> None:
    """Raise OptionError for several micro-batches. ``several`` names the call that accepts them."""
    sequence = isinstance(batch, Sequence) and not isinstance(batch, (list, tuple, str, bytes))
    if sequence or isinstance(batch, (Iterator, DataLoader, *loaders)):
        what = f"this is a {type(batch).__name__}"
    elif looks_like_window(batch):
        what = (
            f"this {type(batch).__name__} of {len(batch)} looks like several: its entries share a structure"
        )
    else:
        return
    raise OptionError(
        f"{verb}: batch must be one batch, but {what}. Pass micro-batches to {several}. Pass uncollated samples "
        "with collate=. If these are the fields of one batch, pass batch_dim=0."
    )


def looks_like_window(batch: Any) -> bool:
    """Return whether the entries of a list or tuple are micro-batches or samples rather than fields.

    True if they are containers with the same structure, or tensors that differ only in their first dimension.
    """
    if not _is_list(batch) or not batch:
        return False
    if all(map(is_array, batch)):
        trailing = {(type(each), each.dtype, tuple(each.shape[1:])) for each in batch}
        return len({each.shape[0] for each in batch}) > 1 and len(trailing) == 1
    return (
        all(children(each) is not None for each in batch) and len({_structure(each) for each in batch}) == 1
    )


def looks_like_batch(window: Any) -> bool:
    """Return whether a list holds fields: tensors with equal first dimensions, but different dtypes or ranks."""
    if not _is_list(window) or not all(map(is_array, window)):
        return False
    return len({each.shape[0] for each in window}) == 1 and len({_structure(each) for each in window}) > 1


def _structure(value: Any) -> Any:
    """Return the structure that all micro-batches of one loader share, regardless of their sizes."""
    inside = children(value)
    if inside is None:
        return _kind(value)
    if _is_list(value) and not any(_may_be_field(item) for _, item in inside):
        return type(value), frozenset(type(item) for _, item in inside)
    return type(value), *((key, _structure(item)) for key, item in inside)


def _kind(item: Any) -> Any:
    """Return the type, dtype and rank that all samples of a list share, even if they are ragged."""
    return (type(item), item.dtype, item.ndim) if is_array(item) else type(item)


def field_name(path: Path) -> str:
    """Return the field as code: ``batch["meta"]["lengths"]``."""
    return "batch" + "".join(f".{key}" if isinstance(key, Attribute) else f"[{_quoted(key)}]" for key in path)


def key_of(path: Path) -> str:
    """Return the field as ``batch_dim`` spells it: a key, or a tuple of keys."""
    return _quoted(path[0]) if len(path) == 1 else f"({', '.join(map(_quoted, path))})"


def _quoted(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def is_array(value: Any) -> bool:
    """Return whether this is a tensor or a numpy array with at least one dimension, but not a nested tensor."""
    return isinstance(value, _arrays()) and bool(value.ndim) and not getattr(value, "is_nested", False)


def _arrays() -> tuple[type[Any], ...]:
    numpy = sys.modules.get("numpy")
    return (Tensor,) if numpy is None else (Tensor, numpy.ndarray)


def _is_shared(value: Any) -> bool:
    """Return whether this is a single value, which all samples share."""
    if isinstance(value, _arrays()):
        return not value.ndim
    numpy = sys.modules.get("numpy")
    return isinstance(value, _SHARED) or callable(value) or isinstance(value, getattr(numpy, "generic", ()))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")


def _may_be_field(value: Any) -> bool:
    """Return whether an entry of a list can hold samples of its own: a tensor or a container."""
    return (isinstance(value, _arrays()) and bool(value.ndim)) or children(value) is not None


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return value.dtype.kind in "iu"


def _is_floating(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"


def _opaque(value: Any) -> str:
    """Return what data is that holds samples, but cannot be sliced; "" for all other values."""
    if isinstance(value, PackedSequence):
        return "PackedSequence"
    if not isinstance(value, Tensor):
        return ""
    if value.is_nested:
        return "nested tensor"
    return "" if value.layout == torch.strided else f"{str(value.layout).removeprefix('torch.')} tensor"
