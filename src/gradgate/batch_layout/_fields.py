"""The fields of a batch: their names, and which of them can hold samples."""

from __future__ import annotations

import enum
import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradgate.pytree import Attribute, children

Path: TypeAlias = "tuple[Any, ...]"

FieldDim: TypeAlias = 'int | Literal["list"] | None'
"""Where a field holds its samples: a tensor's dimension, "list" for one entry per sample, None if all share it."""


class NotGiven(enum.Enum):
    """The type of an option that was not given, where None has a meaning."""

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
    """Return whether this is a tensor or a numpy array with at least one dimension."""
    return isinstance(value, _arrays()) and bool(value.ndim)


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
    return is_array(value) or children(value) is not None


def select(value: Any, dim: FieldDim, chosen: slice | Sequence[int]) -> Any:
    """Return some samples of a field."""
    if dim == "list":
        entries = value[chosen] if isinstance(chosen, slice) else [value[index] for index in chosen]
        return entries if isinstance(entries, type(value)) else type(value)(entries)
    index = chosen if isinstance(chosen, slice) else list(chosen)
    return value[(slice(None),) * int(dim or 0) + (index,)]


def _arrays() -> tuple[type[Any], ...]:
    numpy = sys.modules.get("numpy")
    return (Tensor,) if numpy is None else (Tensor, numpy.ndarray)
