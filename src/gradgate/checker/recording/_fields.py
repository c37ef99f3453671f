"""The user's objects, read without running a line of the user's code.

``isinstance`` reads ``__class__``, ``vars`` and ``getattr`` call ``__getattribute__``, ``list`` and ``len`` call
``__iter__`` and ``__len__``: any class may define these, and a lazy one imports or computes something there. So
types are told by ``type`` alone, fields are read by Python's own descriptors, and items by the methods of the
built-in types, which a subclass cannot replace.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from torch import Tensor

_bases_of: Any = type.__dict__["__mro__"].__get__  # a metaclass may define both names
_names_in: Any = type.__dict__["__dict__"].__get__
_LISTS: tuple[Any, ...] = (list, tuple, deque)
_NUMBERS: tuple[Any, ...] = (int, float)


def is_a(thing: object, *kinds: type) -> bool:
    """Return whether the type of an object is one of these, or a subclass."""
    return issubclass(type(thing), kinds)


def fields_of(thing: object) -> dict[str, Any]:
    """Return the dictionary that holds an object's attributes; an empty one if it has none."""
    for base in _bases_of(type(thing)):
        descriptor = _names_in(base).get("__dict__")
        if descriptor is not None:
            if type(descriptor) not in (GetSetDescriptorType, MemberDescriptorType):
                return {}  # a property of the user's
            fields = descriptor.__get__(thing)
            return fields if type(fields) is dict else {}
    return {}


def size_of(thing: object) -> int:
    """Return the length of a dict, list, tuple or deque; 0 for anything else."""
    kind = next((kind for kind in (dict, *_LISTS) if is_a(thing, kind)), None)
    return int(kind.__len__(thing)) if kind is not None else 0


def pairs_of(thing: object, most: int = 1 << 20) -> list[tuple[Any, Any]]:
    """Return the first keys and values of a dict, or the last places and items of a list, tuple or deque."""
    if is_a(thing, dict):
        return list(islice(dict.items(thing), most))  # type: ignore[arg-type]
    for kind in _LISTS:
        if is_a(thing, kind):
            size = kind.__len__(thing)
            if kind is deque:
                last = list(islice(deque.__reversed__(thing), most))[::-1]  # type: ignore[arg-type]
            else:
                last = kind.__getitem__(thing, slice(max(0, size - most), None))
            return list(enumerate(last, size - len(last)))
    return []


def items_of(thing: object, most: int = 1 << 20) -> list[Any]:
    """Return what :func:`pairs_of` does, without keys and places."""
    return [item for _, item in pairs_of(thing, most)]


def key_text(key: object) -> str:
    """Return a key as it is written in brackets. Only a text or a number is: others write themselves."""
    return repr(key) if type(key) in (str, int, float, bool) else "..."


def number_of(value: object) -> float | None:
    """Return a setting as a number, if it is one: Python's, numpy's, or a tensor with one element."""
    for kind in _NUMBERS:
        if is_a(value, kind):
            return float(kind.__float__(value))
    if is_a(value, Tensor) or type(value).__module__ == "numpy":
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            return None
    return None


def code_of(function: Any) -> types.CodeType | None:
    """Return the code that runs when something is called, if it is Python."""
    while type(function) in (functools.partial, types.MethodType):
        function = function.func if type(function) is functools.partial else function.__func__
    if type(function) is not types.FunctionType:
        function = inspect.getattr_static(type(function), "__call__", None)
    return function.__code__ if type(function) is types.FunctionType else None
