"""Pytrees: tensors in tuples, lists, mappings, named tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


class Attribute(str):
    """The name of a field that is an attribute and no key; equal to the plain name."""

    __slots__ = ()


def children(value: Any, attribute: Callable[[str], Any] = Attribute) -> list[tuple[Any, Any]] | None:
    """Return the keys and values of a container, or None for a leaf; ``attribute`` marks names of attributes."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)) is not None:
        return [(attribute(name), item) for name, item in zip(names, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if value is None:  # torch 2.11 cannot compile a question about the fields of its class
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(attribute(each.name), getattr(value, each.name)) for each in dataclasses.fields(value)]
    return None


def with_children(value: Any, items: Sequence[Any]) -> Any:
    """Return a container like ``value`` that holds ``items``, in the order of :func:`children`."""
    if isinstance(value, Mapping):
        if type(value) is dict:
            return dict(zip(value, items, strict=True))
        # By a copy: a constructor may take something else. torch 2.15 cannot compile copy.copy of an OrderedDict.
        rebuilt: Any = value.copy() if type(value) is OrderedDict else copy.copy(value)
        for key, item in zip(value, items, strict=True):
            rebuilt[key] = item
        return rebuilt
    if hasattr(value, "_fields"):
        return type(value)(*items)
    if isinstance(value, (list, tuple)):
        return type(value)(items)
    return _dataclass_with(value, items)


def _dataclass_with(value: Any, items: Sequence[Any]) -> Any:
    """Make it by its constructor, which may derive more from the fields; then set what that does not take."""
    fields = list(zip(dataclasses.fields(value), items, strict=True))
    rebuilt = dataclasses.replace(value, **{each.name: item for each, item in fields if each.init})
    for each, item in fields:
        if not each.init and item is not getattr(value, each.name):
            object.__setattr__(rebuilt, each.name, item)
    return rebuilt


def value_at(nest: Any, path: Sequence[Any]) -> Any:
    """Return what lies at the end of a path of keys."""
    for key in path:
        nest = dict(children(nest) or ())[key]
    return nest


def tensors_in(nest: Any) -> Iterator[Tensor]:
    """Yield the tensors of a pytree, in order."""
    if isinstance(nest, Tensor):
        yield nest
    for _, item in children(nest) or ():
        yield from tensors_in(item)


def mapped_tensors(nest: T, change: Callable[[Tensor], Any]) -> T:
    """Return a pytree of the same types in which every tensor is what ``change`` makes of it."""
    if isinstance(nest, Tensor):
        return change(nest)  # type: ignore[no-any-return]
    inside = children(nest, lambda name: name)  # torch 2.11 cannot compile the making of an Attribute
    if not inside:
        return nest
    return with_children(nest, [mapped_tensors(item, change) for _, item in inside])  # type: ignore[no-any-return]


def mapped(nest: T, change: Callable[[Tensor], Any]) -> T:
    """Do the same to tensors of at least one dimension."""
    return mapped_tensors(nest, lambda tensor: change(tensor) if tensor.dim() else tensor)
