"""The fields of a batch: what they are called, and which of them can hold samples."""

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
Place: TypeAlias = 'int | Literal["list"] | None'
"""Where a field holds its samples: a dimension of its tensors, "list" for one entry each, None if it is shared."""


class Unsaid(enum.Enum):
    """The caller has said nothing, which None would not mean."""

    UNSAID = "nothing"


UNSAID = Unsaid.UNSAID

BatchDim: TypeAlias = "Place | Mapping[Any, Place]"
"""The place for the whole batch; or by field: a key, an index, or a tuple of these."""

_SHARED = (type(None), str, bytes, numbers.Number, enum.Enum, torch.dtype, torch.device, slice)


def field_name(path: Path) -> str:
    """Return how a field is written: ``batch["meta"]["lengths"]``."""
    return "batch" + "".join(f".{key}" if isinstance(key, Attribute) else f"[{_quoted(key)}]" for key in path)


def key_of(path: Path) -> str:
    """Return how an option names a field: a key, or a tuple of keys."""
    return _quoted(path[0]) if len(path) == 1 else f"({', '.join(map(_quoted, path))})"


def _quoted(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def is_array(value: Any) -> bool:
    """Say whether this is a tensor or a numpy array, with at least one dimension."""
    return isinstance(value, _arrays()) and bool(value.ndim)


def is_shared(value: Any) -> bool:
    """Say whether this is a single value, which belongs to all samples."""
    if isinstance(value, _arrays()):
        return not value.ndim
    numpy = sys.modules.get("numpy")
    return isinstance(value, _SHARED) or callable(value) or isinstance(value, getattr(numpy, "generic", ()))


def is_list(value: Any) -> bool:
    """Say whether this is a list or tuple, and no record with names."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")


def may_be_field(value: Any) -> bool:
    """Say whether an entry of a list can hold samples of its own: a tensor, or a container."""
    return is_array(value) or children(value) is not None


def taken(value: Any, place: Place, chosen: slice | Sequence[int]) -> Any:
    """Return some samples of a field."""
    if place == "list":
        some = value[chosen] if isinstance(chosen, slice) else [value[index] for index in chosen]
        return some if isinstance(some, type(value)) else type(value)(some)
    leading = [slice(None)] * int(place or 0)
    some = chosen if isinstance(chosen, slice) else list(chosen)
    return value[tuple(leading) + (some,)]  # noqa: RUF005 - mypy takes the star in a subscript for 3.11's


def _arrays() -> tuple[type[Any], ...]:
    numpy = sys.modules.get("numpy")
    return (Tensor,) if numpy is None else (Tensor, numpy.ndarray)
