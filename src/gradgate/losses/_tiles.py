"""Computes logits between all rows of two matrices one tile at a time, without storing the whole matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.errors import GraphError

P = ParamSpec("P")
R = TypeVar("R")

_LEAST_BYTES = 128 << 10  # smaller tiles take more time to start operations than to run them
_LARGEST_BYTES = 8 << 20
_BYTES_PER_THREAD = 1 << 20  # larger tiles do not fit into a core's cache


def tile_bytes(left: Tensor, right: Tensor) -> int:
    """Return the size of one tile of the logits of two matrices. Three or four tiles are alive at once.

    On a CPU, a tile takes at most a quarter of the rows' memory, so that the tiles alive take no more than the
    rows. Other devices get large tiles, because starting an operation takes them longer.
    """
    if not left.is_cpu:
        return _LARGEST_BYTES
    largest = min(_LARGEST_BYTES, _BYTES_PER_THREAD * torch.get_num_threads())
    return min(largest, max(_LEAST_BYTES, (left.nbytes + right.nbytes) // 4))


def tiles(
    left: Tensor, right: Tensor, group: dist.ProcessGroup | None = None
) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of both matrices for each tile; with a group, for this rank's share of ``left``."""
    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    start, end = len(left) * rank // ranks, len(left) * (rank + 1) // ranks
    numbers = tile_bytes(left, right) // wide(left.dtype).itemsize
    width = max(1, min(len(right), numbers // max(1, min(end - start, 512))))
    height = max(1, numbers // width)
    for top in range(start, end, height):
        for first in range(0, len(right), width):
            yield slice(top, min(top + height, end)), slice(first, first + width)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of exponentials of logits: float32 for 16-bit dtypes."""
    return torch.promote_types(dtype, torch.float32)


def uncast(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that ignores autocast, and computes in the dtypes of its tensors.

    Autocast would round the logits in the forward pass, but not when the backward pass recomputes them.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        first = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        with torch.autocast(first.device.type, enabled=False):
            return function(*args, **kwargs)

    return run


class LogSumExp(torch.autograd.Function):
    """Log-sum-exp over the rows and the columns of ``scale * left @ right.T``.

    Forward keeps a running maximum and sum for each row and column (Milakov and Gimelshein, 2018,
    arXiv:1805.02867). Backward recomputes each tile, and its softmax from the saved results.
    """

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        scale: Tensor,
        excluded: Tensor | None,
        columns_too: bool,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        dtype = wide(left.dtype)
        by_row = left.new_full((len(left),), -torch.inf, dtype=dtype)
        by_column = left.new_full((len(right) if columns_too else 0,), -torch.inf, dtype=dtype)
        for rows, columns in tiles(left, right, group):
            logits = _logits(left[rows], right[columns], scale, dtype)
            _exclude(logits, excluded, rows, columns)
            by_row[rows] = torch.logaddexp(by_row[rows], logits.logsumexp(1))
            if columns_too:
                by_column[columns] = torch.logaddexp(by_column[columns], logits.logsumexp(0))
        if group is not None:
            # A row is minus infinity on all ranks but its own.
            dist.all_reduce(by_row, dist.ReduceOp.MAX, group)
        if group is not None and columns_too:
            of_ranks = [torch.empty_like(by_column) for _ in range(group.size())]
            dist.all_gather(of_ranks, by_column, group)
            by_column = torch.stack(of_ranks).logsumexp(0)
        ctx.columns_too, ctx.group = columns_too, group
        ctx.save_for_backward(left, right, scale, by_row, by_column, excluded)
        return by_row, by_column

    @staticmethod
    def backward(ctx: Any, of_rows: Tensor, of_columns: Tensor) -> tuple[Tensor | None, ...]:
        left, right, scale, by_row, by_column, excluded = ctx.saved_tensors

        def weights(logits: Tensor, rows: slice, columns: slice) -> Tensor:
            _exclude(logits, excluded, rows, columns)
            inner: Tensor = (logits - by_row[rows, None]).exp_().mul_(of_rows[rows, None])
            if ctx.columns_too:
                inner += logits.sub_(by_column[columns]).exp_().mul_(of_columns[columns])
            return inner

        return *_gradients(ctx, left, right, scale, None, weights)[:3], None, None, None


class PairwiseLogistic(torch.autograd.Function):
    """The sum over all pairs of ``weight_i * softplus(scale * left_i @ right_j + bias)``."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        scale: Tensor,
        bias: Tensor,
        weight: Tensor,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        dtype = wide(left.dtype)
        total = left.new_zeros((), dtype=dtype)
        for rows, columns in tiles(left, right, group):
            logits = _logits(left[rows], right[columns], scale, dtype) + bias
            total += (torch.nn.functional.softplus(logits).sum(1) * weight[rows]).sum()
        if group is not None:
            dist.all_reduce(total, group=group)
        ctx.group = group
        ctx.save_for_backward(left, right, scale, bias, weight)
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        left, right, scale, bias, weight = ctx.saved_tensors

        def weights(logits: Tensor, rows: slice, columns: slice) -> Tensor:
            inner: Tensor = (logits + bias).sigmoid_().mul_((outer * weight[rows])[:, None])
            return inner

        return *_gradients(ctx, left, right, scale, bias, weights), None, None


def _logits(left: Tensor, right: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (left @ right.T).to(dtype).mul_(scale)


def _exclude(logits: Tensor, excluded: Tensor | None, rows: slice, columns: slice) -> None:
    """Set the logit of each row's excluded column to minus infinity, if the tile holds it."""
    if excluded is not None:
        place = excluded[rows, None] - columns.start
        inside = (place >= 0) & (place < logits.shape[1])
        place = place.clamp(0, logits.shape[1] - 1)
        logits.scatter_(1, place, logits.gather(1, place).masked_fill_(inside, -torch.inf))


@uncast
def _gradients(
    ctx: Any,
    left: Tensor,
    right: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    weights: Callable[[Tensor, slice, slice], Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of left, right, scale and bias; ``weights`` returns the gradient of a tile's logits."""
    dtype, inputs = wide(left.dtype), (left, right, scale, bias)
    with torch.no_grad():
        found = [
            torch.zeros_like(each, dtype=dtype) if needed and each is not None else None
            for each, needed in zip(inputs, ctx.needs_input_grad, strict=False)
        ]
        of_left, of_right, of_scale, of_bias = found
        for rows, columns in tiles(left, right, ctx.group):
            products = (left[rows] @ right[columns].T).to(dtype)
            inner = weights(products * scale, rows, columns)
            if of_scale is not None:
                of_scale += (inner * products).sum()
            if of_bias is not None:
                of_bias += inner.sum()
            inner = inner.mul_(scale).to(left.dtype)
            if of_left is not None:
                of_left[rows] += inner @ right[columns]
            if of_right is not None:
                of_right[columns] += inner.T @ left[rows]
        for each in found if ctx.group is not None else ():
            if each is not None:
                dist.all_reduce(each, group=ctx.group)
    gradients = [
        each if each is None or like is None else each.to(like.dtype)
        for each, like in zip(found, inputs, strict=True)
    ]
    if torch.is_grad_enabled():  # only under create_graph=True
        gradients = [each if each is None else _Once.apply(each, left, right, scale) for each in gradients]  # type: ignore[no-untyped-call]
    return tuple(gradients)


class _Once(torch.autograd.Function):
    """A gradient that raises when it is differentiated. torch's ``once_differentiable`` does not always raise."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        raise GraphError(
            "losses: the gradient of this loss cannot be differentiated again (create_graph=True), "
            "because its matrix of logits is never stored. For a gradient penalty, write the loss in plain torch."
        )
