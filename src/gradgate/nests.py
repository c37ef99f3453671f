"""Nests of tensors that hold samples along their first dimension: how many, and how to cut them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def sample_count(micro_batch: Any) -> int | None:
    """Return how many samples a nest of tensors holds, or None where that cannot be told.

    Every tensor of at least one dimension has to agree on its first. A list or tuple of texts or other
    objects is taken as a list of samples; of tensors, numbers or nests, as fields.
    """
    sizes = set(_sizes(micro_batch))
    return sizes.pop() if len(sizes) == 1 else None


def tensors_in(nest: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nest, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif not is_sample_list(nest):
        for item in _items(nest):
            yield from tensors_in(item)


def mapped(nest: T, change: Callable[[Any], Any]) -> T:
    """Return a nest of the same types; tensors with samples and sample lists are what ``change`` makes of them."""
    result: T = _rebuilt(nest, lambda tensor: change(tensor) if tensor.dim() else tensor, lists=change)
    return result


def mapped_tensors(nest: T, change: Callable[[Tensor], Any]) -> T:
    """Return a nest of the same types in which every tensor, single numbers too, is what ``change`` makes of it."""
    result: T = _rebuilt(nest, change)
    return result


def _sizes(value: Any) -> list[int]:
    if isinstance(value, Tensor):
        return [value.shape[0]] if value.dim() else []
    if is_sample_list(value):
        return [len(value)]
    return [size for item in _items(value) for size in _sizes(item)]


def cut(micro_batch: T, parts: int) -> list[T]:
    """Cut a nest into ``parts`` of nearly equal size, in order: 10 samples in 3 are 4, 3 and 3."""
    count = sample_count(micro_batch)
    if count is None:
        raise ValueError("a nest without a common first dimension cannot be cut")
    edges = [-(-count * part // parts) for part in range(parts + 1)]
    spans = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    return [mapped(micro_batch, operator.itemgetter(span)) for span in spans]


def is_sample_list(value: Any) -> bool:
    """Say whether a sequence is a list of samples rather than of fields, each with all the samples."""
    if not isinstance(value, (list, tuple)) or not value or hasattr(value, "_fields"):
        return False
    fields = (Tensor, Mapping, list, tuple, int, float, complex, type(None))
    return not any(isinstance(item, fields) or _is_dataclass(item) for item in value)


def _is_dataclass(value: Any) -> bool:
    # None first: torch 2.11 compiles no question about the fields of its class.
    return value is not None and dataclasses.is_dataclass(value) and not isinstance(value, type)


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if _is_dataclass(value):
        return [getattr(value, each.name) for each in dataclasses.fields(value)]
    return []


def _rebuilt(value: Any, change: Callable[[Tensor], Any], lists: Callable[[Any], Any] | None = None) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if is_sample_list(value):
        return value if lists is None else lists(value)
    if isinstance(value, Mapping):
        items = {key: _rebuilt(item, change, lists) for key, item in value.items()}
        if type(value) is dict:
            return items
        # By a copy: a constructor may take something else. torch 2.15 cannot compile copy.copy of an OrderedDict.
        rebuilt: Any = value.copy() if type(value) is OrderedDict else copy.copy(value)
        for key, item in items.items():
            rebuilt[key] = item
        return rebuilt
    if hasattr(value, "_fields"):
        return type(value)(*(_rebuilt(item, change, lists) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuilt(item, change, lists) for item in value)
    if _is_dataclass(value):
        return _rebuilt_dataclass(value, change, lists)
    return value


def _rebuilt_dataclass(
    value: Any, change: Callable[[Tensor], Any], lists: Callable[[Any], Any] | None = None
) -> Any:
    """Make it by its constructor, which may derive more from the fields; then set what that does not take."""
    fields = dataclasses.fields(value)
    items = {each.name: _rebuilt(getattr(value, each.name), change, lists) for each in fields}
    rebuilt = dataclasses.replace(value, **{each.name: items[each.name] for each in fields if each.init})
    for each in fields:
        if not each.init and items[each.name] is not getattr(value, each.name):
            object.__setattr__(rebuilt, each.name, items[each.name])
    return rebuilt
