"""Finds class losses over tokens whose targets are padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph, ops, reduction_of, signed
from gradgate.torch_compat import saved_tensor

_LEAST_ENDS = 3
_MOST_TOKENS = 1 << 20


def losses_of_padding(graph: Graph) -> Iterator[tuple[Any, tuple[int, int, int]]]:
    """Yield class losses whose targets are padding where an embedding's input is padding.

    Yields the node of the loss, with the embedding's ``padding_idx``, the number of targets that are padding, and
    the number of all targets. Losses that ignore or mask the padding are left out.
    """
    padded = [node for node in graph.nodes if node.name() == ops.EMBEDDING and _padding(node) >= 0]
    losses = [node for node in graph.nodes if node.name() in ops.CLASS_LOSSES] if padded else []
    users = graph.users if losses else {}
    for loss in losses:
        if reduction_of(loss) is None and not _is_reduced(users.get(loss, []), users):
            continue
        for embedding in padded:
            index = _padding(embedding)
            weight = loss._saved_weight
            ignored = signed(loss._saved_ignore_index) == index or (weight is not None and not weight[index])
            if not ignored and (count := _padded(saved_tensor.use(embedding, "indices"), loss, index)):
                yield loss, (index, count, loss._saved_target.numel())
                break


def _padding(embedding: Any) -> int:
    return signed(embedding._saved_padding_idx)


def _is_reduced(above: list[Any], users: dict[Any, list[Any]]) -> bool:
    """Return whether the next operation on a loss, apart from reshapes, is a plain mean or sum."""
    while len(above) == 1 and above[0].name() in ops.RESHAPES:
        above = users.get(above[0], [])
    return len(above) == 1 and above[0].name() in ops.TOTALS


def _padded(indices: Tensor | None, loss: Any, index: int) -> int:
    """Return how many targets and inputs are padding at the same position; 0 if these need not be padding.

    Targets are one token ahead of inputs. Where padding begins, the target is therefore padding and the input is
    the end token. Where padding ends, the target is a token and the input is padding. If they differ anywhere else,
    ``index`` is a class or an end token.
    """
    target: Tensor = loss._saved_target
    if indices is None or indices.dim() != 2 or not 1 < indices.numel() == target.numel() <= _MOST_TOKENS:
        return 0
    padding = indices == index
    rows = next((len(rows) for rows in (padding, padding.T) if _at_one_end(rows)), 0)
    if not rows:
        return 0
    outputs = target.flatten() == index
    for tokens in (indices.flatten(), indices.T.flatten()):
        here = tokens == index
        ends, starts = tokens[outputs & ~here], here & ~outputs
        one_token = len(ends) >= _LEAST_ENDS and bool((ends == ends[0]).all())
        if (one_token and not starts.any()) or (not len(ends) and int(starts.sum()) <= rows):
            return int((here & outputs).sum())
    return 0


def _at_one_end(padding: Tensor) -> bool:
    """Return whether padding is only at the end of rows, or only at their beginning, and never fills a row.

    One row must have at least two padding tokens, because a single one may be at an end by chance.
    """
    steps = padding.to(torch.int8).diff(dim=-1)
    one_way = not (bool((steps < 0).any()) and bool((steps > 0).any()))
    return one_way and bool((padding.sum(dim=-1) > 1).any()) and not bool(padding.all(dim=-1).any())
