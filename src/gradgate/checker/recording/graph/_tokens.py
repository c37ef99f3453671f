"""Finds class losses over tokens whose targets are padding, or wrongly shifted against the model's input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph, inputs, leaf_at, ops, reduction_of, signed
from gradgate.checker.recording.graph._causal import hidden_keys, is_causal
from gradgate.torch_compat import saved_tensor

_LEAST_ENDS = 3
_BELOW = ops.SAME_VALUES | ops.PARTS | ops.LAYERS.keys() | {ops.LOG_SOFTMAX, ops.ADD}
_MOST_TOKENS = 1 << 20
_LEAST_TARGETS = 8  # compared targets


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


def losses_of_hidden_padding(graph: Graph) -> Iterator[tuple[Any, tuple[int, int, int]]]:
    """Yield class losses over the next tokens whose targets are padding that an attention mask hides.

    Yields the node of the loss, with the token that pads, the number of targets that are padding, and the number of
    all targets. The first padding after a sequence doesn't count, because it may be the end token.
    """
    losses = [node for node in graph.nodes if node.name() in ops.CLASS_LOSSES]
    if len(losses) != 1:
        return
    loss, users, target = losses[0], graph.users, losses[0]._saved_target
    ignored, weight = signed(loss._saved_ignore_index), loss._saved_weight
    if reduction_of(loss) is None and not _is_reduced(users.get(loss, []), users):
        return
    embeddings = (node for node in graph.nodes if node.name() == ops.EMBEDDING and _padding(node) < 0)
    saved = (saved_tensor.use(node, "indices") for node in embeddings)
    for tokens in saved:
        if tokens is None or tokens.dim() != 2:
            continue
        hidden = next(hidden_keys(graph.nodes, tokens), None)
        if hidden is None or not _at_one_end(hidden) or not _is_shifted(target, tokens, 1, ignored):
            continue
        rows, both = target.reshape(len(tokens), -1), hidden[:, :-1] & hidden[:, 1:]
        length, padding = min(rows.shape[1], both.shape[1]), tokens[hidden].unique()
        count = int((both[:, :length] & (rows[:, :length] != ignored)).sum())
        if len(padding) == 1 and count and (weight is None or weight[padding].any()):
            yield loss, (int(padding), count, target.numel())
            return


def wrongly_shifted(graph: Graph) -> dict[str, list[Any]]:
    """Return the class losses whose targets are not the next tokens of the model's input.

    "shifted twice": the target at each position is the token two positions later. "not shifted": it is the token
    itself, and the model is certainly causal.

    Losses are left out if a target could also be the next token, if the outputs don't begin at the first position,
    or if there is another class loss with targets, because a model may predict several tokens ahead.
    """
    losses = [node for node in graph.nodes if node.name() in ops.CLASS_LOSSES]
    if len(losses) != 1 or not _begins_at_the_first(losses[0]):
        return {}
    targets, ignored = losses[0]._saved_target, signed(losses[0]._saved_ignore_index)
    saved = [saved_tensor.use(node, "indices") for node in graph.nodes if node.name() == ops.EMBEDDING]
    read = [tokens for tokens in saved if tokens is not None and tokens.dim() == 2 and len(tokens)]
    read = [tokens for tokens in read if targets.numel() % len(tokens) == 0]
    shifts = {by for tokens in read for by in range(3) if _is_shifted(targets, tokens, by, ignored)}
    same = [tokens for tokens in read if tokens.numel() == targets.numel()] if shifts == {0} else []
    causal = any(is_causal(losses[0], tokens) for tokens in same)
    return {"shifted twice": losses * (shifts == {2}), "not shifted": losses * causal}


def _is_shifted(targets: Tensor, tokens: Tensor, by: int, ignored: int) -> bool:
    """Return whether each target that counts is the token this many positions later."""
    if not 0 < tokens.numel() <= _MOST_TOKENS or targets.numel() > tokens.numel():
        return False
    rows = targets.reshape(len(tokens), -1)
    length = min(rows.shape[1], tokens.shape[1] - by)
    rows, later = rows[:, : max(length, 0)], tokens[:, by : by + max(length, 0)]
    counts = rows != ignored
    return int(counts.sum()) >= _LEAST_TARGETS and torch.equal(rows[counts], later[counts])


def _begins_at_the_first(loss: Any) -> bool:
    """Return whether no operation near the loss leaves out the first positions of the outputs."""
    node = loss
    while node is not None and (node is loss or node.name() in _BELOW):
        if node.name() in ops.PARTS and getattr(node, "_saved_start", 1) != 0:
            return False
        data = [child for child in inputs(node) if child.name() in _BELOW and leaf_at(child) is None]
        node = data[0] if len(data) == 1 else None
    return True
