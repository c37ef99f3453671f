"""Finds values of shapes (N, 1) and (N,) that broadcasting turned into a matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradgate.autograd_graph._losses import NotUnderstoodError, reduced_shape, shape_of
from gradgate.autograd_graph._nodes import ELEMENTWISE, ERRORS, named

_BEFORE_REDUCTION = ELEMENTWISE | named("Mean Sum Where ClampMin Minimum Maximum") | named("Clamp", "1")
_ROUNDING = 1e-5  # of float32

Users = Mapping[Any, list[Any]]
"""For each node, the nodes that use its result."""


def broadcast_at(node: Any, users: Users) -> tuple[Any, tuple[int, ...]] | None:
    """Return the last node of shape (N, N) before a mean or a sum, and that shape, if broadcasting made it."""
    shape = node_shape(node, 0)
    if node.name() in ERRORS and len(shape) == 2:
        shape = reduced_shape(node)
    if not _is_square(shape):
        return None
    sizes = _given(node)
    if not sizes & {(shape[0], 1), shape[:1]} or sizes - {(shape[0], 1), shape[:1]}:
        return None
    above = _reduction(node, shape, users)
    if above is None or not _is_outer(node, users[node][0], shape[0]):
        return None
    return above, shape


def node_shape(node: Any, output: int) -> tuple[int, ...]:
    """Return the shape of a node's result, or () if it isn't known."""
    try:
        return shape_of(node, output)
    except NotUnderstoodError:
        return ()


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1] >= 2


def _given(node: Any) -> set[tuple[int, ...]]:
    """Return the shapes of a node's inputs that have a graph."""
    return {node_shape(child, output) for child, output in node.next_functions if child is not None}


def _reduction(node: Any, shape: tuple[int, ...], users: Users) -> Any:
    """Return the node that reduces a value to a number, if only elementwise operations come before it."""
    while node_shape(node, 0) == shape:
        above = users.get(node, ())
        if len(above) != 1 or above[0].name() not in _BEFORE_REDUCTION:
            return None
        node = above[0]
    return node if math.prod(node_shape(node, 0)) == 1 else None


def _is_outer(node: Any, user: Any, size: int) -> bool:
    """Return whether (N, N) values come from broadcasting, not from a matrix that happens to be square."""
    if node.name() == "MulBackward0":
        saved = (node._saved_self, node._saved_other)
        shapes = _given(node) | {tuple(each.shape) for each in saved if isinstance(each, Tensor)}
        return shapes == {(size, 1), (size,)}
    if user.name() in ("PowBackward0", "AbsBackward0"):
        values = user._saved_self
    elif user.name() in ERRORS:
        values = user._saved_self - user._saved_target
    else:
        return False
    values = values.detach().double()
    rest = (
        values - values[:1] - values[:, :1] + values[:1, :1]
    )  # 0 if each is a row value plus a column value
    return bool(rest.abs().max() <= _ROUNDING * values.abs().max())
