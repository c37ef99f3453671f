"""Finds values of shapes (N, 1) and (N,) that broadcasting turned into a matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import (
    NotUnderstoodError,
    inputs,
    ops,
    reachable,
    reduced_shape,
    shape_of,
    through,
)

_SAME = ops.RESHAPES | ops.SAME_VALUES
_ROUNDING = 1e-5  # of float32

Users = Mapping[Any, list[Any]]
"""For each node, the nodes that use its result."""


def broadcast_at(node: Any, users: Users) -> tuple[Any, tuple[int, ...], Any] | None:
    """If broadcasting at a node made an (N, N) matrix, return the node that reduces it, and the shape.

    The third value is the node that turned a vector into the column (N, 1), if there is one. It is None if the node
    is part of a loss of ``torch.nn.functional``, which asks for sides of equal shape.
    """
    shape = node_shape(node, 0)
    if node.name() in ops.ERRORS and len(shape) == 2:
        shape = reduced_shape(node)
    if not _is_square(shape):
        return None
    sizes = _given(node)
    if not sizes & {(shape[0], 1), shape[:1]} or sizes - {(shape[0], 1), shape[:1]}:
        return None
    above = _reduction(node, shape, users)
    if above is None or not _is_outer(node, users, shape[0]):
        return None
    if any(_is_paired(through(side, _SAME), users, shape) for side in inputs(node)):
        return None
    columns = [side for side in inputs(node) if side.name() == ops.UNSQUEEZE]
    is_error = all(user.name() in ops.ERRORS for user in users[node])
    return above, shape, columns[0] if columns and not is_error else None


def node_shape(node: Any, output: int) -> tuple[int, ...]:
    """Return the shape of a node's result, or () if it isn't known."""
    try:
        return shape_of(node, output)
    except NotUnderstoodError:
        return ()


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1] >= 2


def _given(node: Any) -> set[tuple[int, ...]]:
    """Return the shapes of those inputs of a node that have a graph."""
    return {node_shape(child, output) for child, output in node.next_functions if child is not None}


def _reduction(node: Any, shape: tuple[int, ...], users: Users) -> Any:
    """Return the node that reduces this one's result to a number; None if other operations use the result, too."""

    def same_shape(inner: Any) -> list[Any]:
        return [user for user in users.get(inner, ()) if node_shape(user, 0) == shape]

    ends: list[Any] = []
    for inner in reachable(node, following=same_shape):
        above = users.get(inner, ())
        if not above or any(user.name() not in ops.BEFORE_REDUCTION for user in above):
            return None
        ends += [user for user in above if node_shape(user, 0) != shape]
    return ends[0] if all(math.prod(node_shape(end, 0)) == 1 for end in ends) else None


def _is_outer(node: Any, users: Users, size: int) -> bool:
    """Return whether (N, N) values come from broadcasting, not from a matrix that happens to be square."""
    if node.name() == ops.MUL:
        saved = (node._saved_self, node._saved_other)
        shapes = _given(node) | {tuple(factor.shape) for factor in saved if isinstance(factor, Tensor)}
        return shapes == {(size, 1), (size,)}
    values = _values(node, users)
    if values is None:
        return False
    values = values.detach().double()
    rest = (
        values - values[:1] - values[:, :1] + values[:1, :1]
    )  # 0 if each is a row value plus a column value
    return bool(rest.abs().max() <= _ROUNDING * values.abs().max())


def _is_paired(value: Any, users: Users, shape: tuple[int, ...]) -> bool:
    """Return whether the loss compares a value with itself, or with a row (1, N), in all pairs on purpose."""

    def copies(inner: Any) -> list[Any]:
        return [user for user in users.get(inner, ()) if user.name() in _SAME]

    for inner in reachable(value, following=copies):
        for user in users.get(inner, ()):
            if user.name() not in _SAME and node_shape(user, 0) == shape and len(sides := inputs(user)) == 2:
                first, second = (through(side, _SAME) for side in sides)
                if first is second or _given(user) == {(shape[0], 1), (1, shape[0])}:
                    return True
    return False


def _values(node: Any, users: Users) -> Tensor | None:
    """Return a node's result, or a multiple of it, if an operation saved it."""

    def multiples(inner: Any) -> list[Any]:
        return [user for user in users.get(inner, ()) if user.name() in ops.PRODUCTS and _is_by_number(user)]

    for inner in reachable(node, following=multiples):
        for user in users.get(inner, ()):
            if user.name() in ops.ERRORS:
                return user._saved_self - user._saved_target  # type: ignore[no-any-return]
            saved, first = getattr(user, "_saved_self", None), user.next_functions[0][0]
            if user.name() in ops.SAVE_THEIR_INPUT and first is inner and isinstance(saved, Tensor):
                return saved
    return None


def _is_by_number(product: Any) -> bool:
    factor = getattr(product, "_saved_other", None)
    return isinstance(factor, Tensor) and factor.numel() == 1
