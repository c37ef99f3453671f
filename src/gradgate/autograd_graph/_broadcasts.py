"""Finds values of shapes (N, 1) and (N,) that broadcasting turned into a matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradgate.autograd_graph._losses import NotUnderstoodError, reduced_shape, shape_of
from gradgate.autograd_graph._nodes import (
    ELEMENTWISE,
    ERRORS,
    PRODUCTS,
    RESHAPES,
    SAME_VALUES,
    inputs,
    named,
    through,
)

_BEFORE_REDUCTION = (
    ELEMENTWISE
    | named("Mean Sum Where ClampMin Minimum Maximum Sqrt Log Cosh Softplus")
    | named("Clamp ClampMax", "01")
)
_SAVES_ITS_INPUT = named("Pow Abs Cosh Mul Minimum Maximum Softplus")
_SAME = RESHAPES | SAME_VALUES
_ROUNDING = 1e-5  # of float32

Users = Mapping[Any, list[Any]]
"""For each node, the nodes that use its result."""


def broadcast_at(node: Any, users: Users) -> tuple[Any, tuple[int, ...], Any] | None:
    """If broadcasting at a node made an (N, N) matrix, return the node that reduces it, and the shape.

    The third value is the node that turned a vector into the column (N, 1), if there is one. It is None if the node
    is part of a loss of ``torch.nn.functional``, which asks for sides of equal shape.
    """
    shape = node_shape(node, 0)
    if node.name() in ERRORS and len(shape) == 2:
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
    columns = [each for each in inputs(node) if each.name() == "UnsqueezeBackward0"]
    is_error = all(user.name() in ERRORS for user in users[node])
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
    ends: list[Any] = []
    todo = [node]
    for inner in todo:  # grows during the loop
        above = users.get(inner, ())
        if not above or any(user.name() not in _BEFORE_REDUCTION for user in above):
            return None
        same = [user for user in above if node_shape(user, 0) == shape]
        ends += [user for user in above if user not in same]
        todo += [user for user in dict.fromkeys(same) if user not in todo]
    return ends[0] if all(math.prod(node_shape(end, 0)) == 1 for end in ends) else None


def _is_outer(node: Any, users: Users, size: int) -> bool:
    """Return whether (N, N) values come from broadcasting, not from a matrix that happens to be square."""
    if node.name() == "MulBackward0":
        saved = (node._saved_self, node._saved_other)
        shapes = _given(node) | {tuple(each.shape) for each in saved if isinstance(each, Tensor)}
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
    todo = [value]
    for inner in todo:  # grows during the loop
        for user in users.get(inner, ()):
            if user.name() in _SAME:
                todo += [user] if user not in todo else []
            elif node_shape(user, 0) == shape and len(sides := inputs(user)) == 2:
                first, second = (through(side, _SAME) for side in sides)
                if first is second or _given(user) == {(shape[0], 1), (1, shape[0])}:
                    return True
    return False


def _values(node: Any, users: Users) -> Tensor | None:
    """Return a node's result, or a multiple of it, if an operation saved it."""
    todo = [node]
    for inner in todo:  # grows during the loop
        for user in users.get(inner, ()):
            if user.name() in ERRORS:
                return user._saved_self - user._saved_target  # type: ignore[no-any-return]
            saved, first = getattr(user, "_saved_self", None), user.next_functions[0][0]
            if user.name() in _SAVES_ITS_INPUT and first is inner and isinstance(saved, Tensor):
                return saved
            factor = getattr(user, "_saved_other", None)
            if user.name() in PRODUCTS and isinstance(factor, Tensor) and factor.numel() == 1:
                todo.append(user)
    return None
