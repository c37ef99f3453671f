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
    """A key that is the name of an attribute; equal to the plain name."""

    __slots__ = ()


def children(value: Any, attribute: Callable[[str], Any] = Attribute) -> list[tuple[Any, Any]] | None:
    """Return the keys and values of a container, or None for a leaf; ``attribute`` marks names of attributes."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)) is not None:
        return [(attribute(name), item) for name, item in zip(names, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if value is None:  # torch 2.11 cannot compile is_dataclass(None)
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(attribute(each.name), getattr(value, each.name)) for each in dataclasses.fields(value)]
    return None


def with_children(value: Any, items: Sequence[Any]) -> Any:
    """Return a container like ``value`` that holds ``items``, in the order of :func:`children`."""
    if isinstance(value, Mapping):
        if type(value) is dict:
            return dict(zip(value, items, strict=True))
        # Copied, because a constructor may take other arguments. torch 2.15 cannot compile copy.copy of an
        # OrderedDict.
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
    """Return a dataclass like ``value`` with ``items`` as its fields, even fields that its constructor lacks."""
    fields = list(zip(dataclasses.fields(value), items, strict=True))
    rebuilt = dataclasses.replace(value, **{each.name: item for each, item in fields if each.init})
    for each, item in fields:
        if not each.init and item is not getattr(value, each.name):
            object.__setattr__(rebuilt, each.name, item)
    return rebuilt


def value_at(tree: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path of keys."""
    for key in path:
        tree = dict(children(tree) or ())[key]
    return tree


def has_path(tree: Any, path: Sequence[Any]) -> bool:
    """Return whether a path of keys leads to a value."""
    try:
        value_at(tree, path)
    except KeyError:
        return False
    return True


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a pytree, in order."""
    if isinstance(tree, Tensor):
        yield tree
    for _, item in children(tree) or ():
        yield from tensors_in(item)


def mapped_tensors(
    tree: T, change: Callable[[Tensor], Any], check_leaf: Callable[[Any], None] | None = None
) -> T:
    """Return a pytree of the same types, with ``change(tensor)`` in place of each tensor.

    ``check_leaf`` is called with each leaf that is not a tensor.
    """
    if isinstance(tree, Tensor):
        return change(tree)  # type: ignore[no-any-return]
    inside = children(tree, lambda name: name)  # torch 2.11 cannot compile the making of an Attribute
    if not inside:
        if inside is None and check_leaf is not None:
            check_leaf(tree)
        return tree
    changed = [mapped_tensors(item, change, check_leaf) for _, item in inside]
    return with_children(tree, changed)  # type: ignore[no-any-return]
