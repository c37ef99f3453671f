"""The fields of a batch: their names, which of them can hold samples, and whether they are several batches."""

from __future__ import annotations

import enum
import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gradgate.errors import OptionError
from gradgate.pytree import Attribute, children

Path: TypeAlias = "tuple[Any, ...]"

FieldDim: TypeAlias = 'int | Literal["list"] | None'
"""Where a field holds its samples: a tensor's dimension, "list" for one entry per sample, None if all share it."""


class NotGiven(enum.Enum):
    """The type of ``NOT_GIVEN``, the default of options for which None has a meaning of its own."""

    NOT_GIVEN = "nothing"


NOT_GIVEN = NotGiven.NOT_GIVEN

BatchDim: TypeAlias = "FieldDim | Mapping[Any, FieldDim]"
"""The dimension for the whole batch, or one per field; a field is a key, an index, or a tuple of these."""

_SHARED = (type(None), str, bytes, numbers.Number, enum.Enum, torch.dtype, torch.device, slice)


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
    return _has_dims(value) and not getattr(value, "is_nested", False)


def is_shared(value: Any) -> bool:
    """Return whether this is a single value, which all samples share."""
    if isinstance(value, _arrays()):
        return not value.ndim
    numpy = sys.modules.get("numpy")
    return isinstance(value, _SHARED) or callable(value) or isinstance(value, getattr(numpy, "generic", ()))


def is_list(value: Any) -> bool:
    """Return whether this is a list or tuple, but not a named tuple."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")


def may_be_field(value: Any) -> bool:
    """Return whether an entry of a list can hold samples of its own: a tensor or a container."""
    return _has_dims(value) or children(value) is not None


def select(value: Any, dim: FieldDim, chosen: slice | Sequence[int]) -> Any:
    """Return some samples of a field."""
    if dim == "list":
        entries = value[chosen] if isinstance(chosen, slice) else [value[index] for index in chosen]
        return entries if isinstance(entries, type(value)) else type(value)(entries)
    index = chosen if isinstance(chosen, slice) else list(chosen)
    return value[(slice(None),) * int(dim or 0) + (index,)]


def _has_dims(value: Any) -> bool:
    return isinstance(value, _arrays()) and bool(value.ndim)


def _arrays() -> tuple[type[Any], ...]:
    numpy = sys.modules.get("numpy")
    return (Tensor,) if numpy is None else (Tensor, numpy.ndarray)


def looks_like_window(batch: Any) -> bool:
    """Return whether the entries of a list or tuple are micro-batches or samples rather than fields.

    True if they are containers with the same structure, or tensors that differ only in their first dimension.
    """
    if not is_list(batch) or not batch:
        return False
    if all(map(is_array, batch)):
        trailing = {(type(each), each.dtype, tuple(each.shape[1:])) for each in batch}
        return len({each.shape[0] for each in batch}) > 1 and len(trailing) == 1
    return (
        all(children(each) is not None for each in batch) and len({_structure(each) for each in batch}) == 1
    )


def looks_like_batch(window: Any) -> bool:
    """Return whether a list holds fields: tensors with equal first dimensions, but different dtypes or ranks."""
    if not is_list(window) or not all(map(is_array, window)):
        return False
    return len({each.shape[0] for each in window}) == 1 and len({_structure(each) for each in window}) > 1


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


def _structure(value: Any) -> Any:
    """Return the structure that all micro-batches of one loader share, regardless of their sizes."""
    if is_array(value):
        return type(value), value.dtype, value.ndim
    inside = children(value)
    if inside is None:
        return type(value)
    if is_list(value) and not any(may_be_field(item) for _, item in inside):
        return type(value), frozenset(type(item) for _, item in inside)
    return type(value), *((key, _structure(item)) for key, item in inside)
