"""Read the user's objects without running the user's code.

A user's class may define ``__class__``, ``__getattribute__``, ``__iter__`` or ``__len__``, for example to import
something lazily. ``isinstance``, ``getattr``, ``list`` and ``len`` would call these methods. Therefore this module
uses ``type``, Python's own descriptors and the methods of the built-in types, which no subclass can replace.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from torch import Tensor, nn

from gradgate.torch_compat import OWN_BUFFERS, OWN_MODULES, OWN_PARAMETERS

_bases_of: Any = type.__dict__["__mro__"].__get__  # a metaclass may redefine __mro__ and __dict__
_names_in: Any = type.__dict__["__dict__"].__get__
_LISTS: tuple[Any, ...] = (list, tuple, deque)
_NUMBERS: tuple[Any, ...] = (int, float)


def is_a(thing: object, *kinds: type) -> bool:
    """Return whether the type of an object is one of ``kinds`` or a subclass."""
    return issubclass(type(thing), kinds)


def fields_of(thing: object) -> dict[str, Any]:
    """Return an object's ``__dict__``; an empty dict if the object has none."""
    for base in _bases_of(type(thing)):
        descriptor = _names_in(base).get("__dict__")
        if descriptor is not None:
            if type(descriptor) not in (GetSetDescriptorType, MemberDescriptorType):
                return {}  # the user's class defines __dict__ as a property
            fields = descriptor.__get__(thing)
            return fields if type(fields) is dict else {}
    return {}


def pairs_of(thing: object, most: int = 1 << 20) -> list[tuple[Any, Any]]:
    """Return the first ``most`` (key, value) of a dict, or the last (index, item) of a list, tuple or deque."""
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
    """Return the values or items from :func:`pairs_of`."""
    return [item for _, item in pairs_of(thing, most)]


def listed(given: Any) -> list[Any]:
    """Return the tensors in an argument of torch.autograd: one tensor, or a list, tuple or dict of several."""
    return [given] if is_a(given, Tensor) else items_of(given)


def tensors_in(*given: Any) -> list[Tensor]:
    """Return the tensors among several objects, and in the lists, tuples and dicts among them."""
    return [each for thing in given for each in listed(thing) if is_a(each, Tensor)]


def key_text(key: object) -> str:
    """Return the repr of a string or number; "..." for other keys, whose ``__repr__`` may be the user's."""
    return repr(key) if type(key) in (str, int, float, bool) else "..."


def number_of(value: object) -> float | None:
    """Return a Python number, numpy number or one-element tensor as a float; None for anything else."""
    if type(value) is float:  # the most frequent case
        return value
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
    """Return the code object of a callable; None if the callable isn't written in Python."""
    while type(function) in (functools.partial, types.MethodType):
        function = function.func if type(function) is functools.partial else function.__func__
    if type(function) is not types.FunctionType:
        function = inspect.getattr_static(type(function), "__call__", None)
    return function.__code__ if type(function) is types.FunctionType else None


# The functions below don't call parameters(), children() and the like, because a user's class may redefine them.
# While a module's constructor runs, its dictionaries may not exist yet.


def _held(module: nn.Module, name: str) -> list[tuple[str, Any]]:
    held = fields_of(module).get(name)
    if is_a(held, dict):
        return [(key, value) for key, value in dict.items(held) if value is not None]  # type: ignore[arg-type]
    if type(held).__module__.startswith("torch.jit"):
        return [(key, value) for key, value in held.items() if value is not None]  # type: ignore[union-attr]
    return []


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return a module's own parameters, without those of its children."""
    return [parameter for _, parameter in _held(module, OWN_PARAMETERS)]


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own buffers by name, without those of its children."""
    return dict(_held(module, OWN_BUFFERS))


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the names and modules of a module's direct children."""
    return _held(module, OWN_MODULES)


def modules_in(module: nn.Module) -> list[nn.Module]:
    """Return a module and all its descendants, each once."""
    found = {id(module): module}
    waiting = [module]
    for each in waiting:  # the list grows during the loop
        for _, child in children_of(each):
            if id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return waiting


def parameters_in(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module and its descendants, each once."""
    several = [each for inner in modules_in(module) for each in own_parameters(inner)]
    return list({id(each): each for each in several}.values())


def named_parameters(
    module: nn.Module, prefix: str = "", _outer: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a module and its descendants. A shared parameter comes under each of its names."""
    for name, parameter in _held(module, OWN_PARAMETERS):
        yield prefix + name, parameter
    outer = (*_outer, id(module))
    for name, child in children_of(module):
        if id(child) not in outer:
            yield from named_parameters(child, f"{prefix}{name}.", outer)
