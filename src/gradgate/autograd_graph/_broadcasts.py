"""Finds values of shapes (N, 1) and (N,) that broadcasting turned into a matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph._losses import NotUnderstoodError, reduced_shape, shape_of
from gradgate.autograd_graph._nodes import ELEMENTWISE, ERRORS, LEAF, named
from gradgate.autograd_graph._walk import walk
from gradgate.torch_compat import saved_tensor

_BEFORE_REDUCTION = ELEMENTWISE | named("Mean Sum Where ClampMin Minimum Maximum") | named("Clamp", "1")
_LEAST_PAIRS = 4  # samples; a smaller matrix may be a sum of two vectors by chance
_MOST_PAIRS = 4096
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


def weighed_by_pairs(node: Any, users: Users) -> tuple[int, ...] | None:
    """Return the shape (N, N) of a matrix without a graph that weighs N log-probabilities, if broadcasting made it.

    Every entry of such a matrix is a row value plus a column value. If both vectors are
    equal, apart from the sign, the loss compares the samples with each other on purpose.
    """
    shape = node_shape(node, 0)
    if node.name() != "MulBackward0" or not _is_square(shape):
        return None
    if not _LEAST_PAIRS <= shape[0] <= _MOST_PAIRS or len(_given(node)) != 1:
        return None
    if not _given(node) <= {(shape[0], 1), shape[:1]} or _reduction(node, shape, users) is None:
        return None
    saved = [saved_tensor.use(node, name) for name in ("self", "other")]
    known = (each for each in saved if isinstance(each, Tensor) and tuple(each.shape) == shape)
    matrix = next((each.detach().double() for each in known), None)
    logarithm = any("Log" in below.name() for below, _ in walk(node))
    return shape if logarithm and matrix is not None and _joins_two_vectors(matrix) else None


def node_shape(node: Any, output: int) -> tuple[int, ...]:
    """Return the shape of a node's result, or () if it isn't known."""
    if node.name() == LEAF:
        return tuple(node.variable.shape)
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
    return _is_separable(values.detach().double())


def _is_separable(values: Tensor) -> bool:
    """Return whether each entry is a row value plus a column value."""
    rest = values - values[:1] - values[:, :1] + values[:1, :1]
    return bool(rest.abs().max() <= _ROUNDING * values.abs().max())


def _joins_two_vectors(matrix: Tensor) -> bool:
    """Return whether a matrix is the sum of two vectors that are not constant and not each other's negative."""
    least = _ROUNDING * matrix.abs().max()
    both = matrix + matrix.T
    apart = (matrix - matrix[:1], matrix - matrix[:, :1], both - both[:1, :1])
    varies = all(bool(torch.isfinite(each).all() and each.abs().max() > 10 * least) for each in apart)
    return varies and _is_separable(matrix)
