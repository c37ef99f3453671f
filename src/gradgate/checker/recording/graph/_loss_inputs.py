"""Decides whether a loss that takes logits or log-probabilities was given something else."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradgate.autograd_graph import inputs, ops, signed, through
from gradgate.checker.recording.graph._layers import layer_weight

Given: TypeAlias = Literal["probabilities", "scores", "other axis"]

_SAME_OR_PART = ops.SAME_VALUES | ops.PARTS
_MOST_VALUES = 1 << 22  # larger inputs are not read
_OFF = 0.1  # far above the rounding of 16-bit log-probabilities, whose logsumexp is 0
_MOST_ROWS = 0.9


def not_log_probabilities(node: Any) -> Given | None:
    """Return what ``nll_loss``, ``ctc_loss`` or ``kl_div`` was given instead of log-probabilities.

    Recognizes only the outputs of softmax, of log_softmax over another dimension, and of linear layers.
    For ``kl_div``, whose node is ``target * log(target) - target * input``, log_softmax is not recognized.
    """
    name = node.name()
    if name == ops.SUB:
        return _given_to_divergence(node)
    if name not in ops.CLASS_LOSSES and name not in ops.CTC_LOSSES:
        return None
    made_by, whole = _maker(node.next_functions[0][0])
    kind = made_by.name() if made_by is not None else ""
    if kind not in ops.OVER_CLASSES and layer_weight(made_by) is None:
        return None
    given: Tensor = node._saved_self if name in ops.CLASS_LOSSES else node._saved_log_probs
    dim = -1 if name in ops.CTC_LOSSES or given.dim() < 2 else 1
    if given.shape[dim] < 2 or not 0 < given.numel() <= _MOST_VALUES:
        return None
    given = given.detach().float()
    if kind == ops.SOFTMAX:
        return "probabilities" if whole and _sums_to_one(given, dim) else None
    off = given.logsumexp(dim).abs() > _OFF
    if float(off.float().mean()) < _MOST_ROWS:
        return None
    if kind in ops.LAYERS:
        return "scores"
    return "other axis" if whole and not _pairs_samples(node, given) else None


def _given_to_divergence(node: Any) -> Given | None:
    product = node.next_functions[1][0]
    if node.next_functions[0][0] is not None or product is None or product.name() != ops.MUL:
        return None
    children = [child for child, _ in product.next_functions]
    if children.count(None) != 1:
        return None
    target = product._saved_other if children[1] is None else product._saved_self
    made_by, whole = _maker(next(child for child in children if child is not None))
    kind = made_by.name() if made_by is not None and whole else ""
    if not isinstance(target, Tensor) or not (
        kind == ops.SOFTMAX or (kind and layer_weight(made_by) is not None)
    ):
        return None
    if target.dim() < 2 or not 0 < target.numel() <= _MOST_VALUES:
        return None
    dim = signed(int(made_by._saved_dim)) if kind == ops.SOFTMAX else -1
    if not -target.dim() <= dim < target.dim() or not _sums_to_one(target.detach().float(), dim):
        return None
    return "probabilities" if kind == ops.SOFTMAX else "scores"


def _maker(node: Any) -> tuple[Any, bool]:
    """Return the node that computed a node's values, skipping reshapes and slices, and whether none was a slice."""
    node, unsplit = through(node, _SAME_OR_PART), through(node, ops.SAME_VALUES)
    whole = node is unsplit
    if node is not None and node.name() == ops.ADD:  # a layer that adds its bias after the product
        below = inputs(node)
        others = [child for child in below if child.name() != ops.LEAF]
        if len(below) == 2 and len(others) == 1:
            made_by, _ = _maker(others[0])
            return (node if layer_weight(made_by) is None else made_by), whole
    return node, whole


def _pairs_samples(node: Any, given: Tensor) -> bool:
    """Return whether the classes are the samples themselves, as in a contrastive loss, which may normalize rows."""
    if node.name() not in ops.CLASS_LOSSES:
        return False
    if given.dim() == 2 and given.shape[0] == given.shape[1]:
        return True
    target = getattr(node, "_saved_target", None)
    return (
        isinstance(target, Tensor)
        and target.dim() == 1
        and bool((target == torch.arange(len(target), device=target.device)).all())
    )


def _sums_to_one(values: Tensor, dim: int) -> bool:
    sums = values.sum(dim)
    return bool((values >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-2)


def normalized_twice(node: Any) -> Any:
    """Return the node of a softmax or sigmoid whose result a loss normalizes once more; otherwise None.

    The loss is a ``log_softmax`` of a softmax over the same dimension, or ``binary_cross_entropy_with_logits`` of a
    sigmoid. The ``log_softmax`` may be inside ``cross_entropy`` or a categorical distribution with ``logits=``. A
    softmax that weights constant distributions, such as one-hot labels, counts as well. A ``log_softmax`` of a
    ``log_softmax`` changes nothing, and a scaled softmax may be intended.
    """
    name = node.name()
    if name == ops.LOG_SOFTMAX:
        inner = _mixed(through(node.next_functions[0][0], ops.RESHAPES))
        if inner is not None and inner.name() == ops.SOFTMAX and _dim(inner) == _dim(node):
            return inner
    elif name == ops.BINARY_CROSS_ENTROPY_OF_LOGITS:
        inner = through(node.next_functions[0][0], ops.RESHAPES)
        if inner is not None and inner.name() == ops.SIGMOID:
            return inner
    elif name == ops.SUB:  # logits - logits.logsumexp(-1, keepdim=True)
        (inner, _), (total, _) = node.next_functions[:2]
        if inner is None or total is None or inner.name() != ops.SOFTMAX:
            return None
        if total.name() == ops.LOGSUMEXP and total.next_functions[0][0] is inner:
            return inner
    return None


def _mixed(node: Any) -> Any:
    """Return the softmax that weights constant distributions in a matrix product; return other nodes unchanged."""
    if node is None or node.name() not in ops.MATRIX_PRODUCTS or node.next_functions[1][0] is not None:
        return node
    rows, softmax = node._saved_mat2.detach(), through(node.next_functions[0][0], ops.RESHAPES)
    if softmax.name() != ops.SOFTMAX or _dim(softmax) != -1 or rows.numel() > _MOST_VALUES:
        return node
    return softmax if _sums_to_one(rows.float(), -1) else node


def _dim(node: Any) -> int:
    """Return the dimension that a softmax normalizes, counted from the last one (-1)."""
    dim = signed(int(node._saved_dim))
    return dim - node._saved_result.dim() if dim >= 0 else dim
