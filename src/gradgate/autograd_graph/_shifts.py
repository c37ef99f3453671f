"""Finds by how many positions the targets of a class loss are shifted against the tokens that a model reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph._losses import signed
from gradgate.autograd_graph._nodes import CLASS_LOSSES, LAYERS, SAME_VALUES, inputs, leaf_at, named
from gradgate.autograd_graph._walk import Graph
from gradgate.torch_compat import saved_tensor

_PARTS = named("Slice Select Index Narrow", "01")
_BELOW = SAME_VALUES | _PARTS | named("LogSoftmax ToCopy Add") | LAYERS.keys()
_EMBEDDINGS = named("Embedding")
_MOST_TOKENS = 1 << 20
_LEAST_TARGETS = 8  # compared targets


def shifted_twice(graph: Graph) -> list[Any]:
    """Return the class losses whose target at each position is the token two positions later in the model's input.

    Losses are left out if a target could also be the next token or the token itself, if the outputs don't begin at
    the first position, or if another class loss has targets, too: several may predict several tokens ahead.
    """
    losses = [node for node in graph.nodes if node.name() in CLASS_LOSSES]
    if len(losses) != 1 or not _begins_at_the_first(losses[0]):
        return []
    targets, ignored = losses[0]._saved_target, signed(losses[0]._saved_ignore_index)
    saved = [saved_tensor.use(node, "indices") for node in graph.nodes if node.name() in _EMBEDDINGS]
    read = [each for each in saved if each is not None and each.dim() == 2 and len(each)]
    read = [tokens for tokens in read if targets.numel() % len(tokens) == 0]
    shifts = {each for tokens in read for each in range(3) if _is_shifted(targets, tokens, each, ignored)}
    return losses if shifts == {2} else []


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
        if node.name() in _PARTS and getattr(node, "_saved_start", 1) != 0:
            return False
        data = [child for child in inputs(node) if child.name() in _BELOW and leaf_at(child) is None]
        node = data[0] if len(data) == 1 else None
    return True
