"""Finds parameters that a graph hides from autograd, inside a node that runs its own backward pass."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from torch import nn

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._walk import Graph

_DEPTH = 4  # of the search in a node's objects, such as a partial of a module's method


class Hidden(NamedTuple):
    """A node that hides a parameter.

    Attributes:
        node: the name of the node.
        module: the class of the module that the node keeps, or "" for a reentrant checkpoint.
        path: the parameter's name in that module.
    """

    node: str
    module: str = ""
    path: str = ""


def hidden_parameter(graph: Graph) -> Hidden | None:
    """Return a parameter that a graph hides from autograd, or None if there isn't one.

    A function written in Python may run a backward pass of its own. Its context then keeps the module that the
    function runs again, directly or in a method, a partial or a closure.
    """
    for node in graph.nodes:
        if node.name() == ops.REENTRANT_CHECKPOINT:
            return Hidden(ops.REENTRANT_CHECKPOINT)
        for module in _modules(getattr(node, "__dict__", {}).values(), _DEPTH):
            for path, parameter in module.named_parameters():
                if parameter.requires_grad and parameter not in graph:
                    return Hidden(node.name(), type(module).__name__, path)
    return None


def _modules(things: Iterable[Any], depth: int) -> Iterator[nn.Module]:
    for thing in list(things):
        if isinstance(thing, nn.Module):
            yield thing
        elif depth:
            yield from _modules(_within(thing), depth - 1)


def _within(thing: Any) -> Iterable[Any]:
    if isinstance(thing, (tuple, list)):
        return thing
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if not callable(thing) or isinstance(thing, type):
        return []
    inside = [getattr(thing, name, None) for name in ("__self__", "__wrapped__")]
    for cell in getattr(thing, "__closure__", None) or ():
        with suppress(ValueError):  # an empty cell
            inside.append(cell.cell_contents)
    return inside
