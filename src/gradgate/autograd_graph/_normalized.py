"""Find probabilities that a loss takes for logits."""

from __future__ import annotations

from typing import Any

from gradgate.autograd_graph._losses import RESHAPES


def normalized_twice(node: Any) -> Any:
    """Return the node of a softmax or sigmoid whose result a loss normalizes once more; otherwise None.

    That is a ``log_softmax`` of a softmax over the same dimension, also inside ``cross_entropy`` and a categorical
    distribution of ``logits=``, and ``binary_cross_entropy_with_logits`` of a sigmoid. A ``log_softmax`` of a
    ``log_softmax`` changes nothing, and a scaled softmax may be meant.
    """
    name = node.name()
    if name == "LogSoftmaxBackward0":
        inner = _given(node)
        if inner is not None and inner.name() == "SoftmaxBackward0" and _dim(inner) == _dim(node):
            return inner
    elif name == "BinaryCrossEntropyWithLogitsBackward0":
        inner = _given(node)
        if inner is not None and inner.name() == "SigmoidBackward0":
            return inner
    elif name == "SubBackward0":  # logits - logits.logsumexp(-1, keepdim=True)
        (inner, _), (total, _) = node.next_functions[:2]
        if inner is None or total is None or inner.name() != "SoftmaxBackward0":
            return None
        if total.name() == "LogsumexpBackward0" and total.next_functions[0][0] is inner:
            return inner
    return None


def _given(node: Any) -> Any:
    """Return the node of a function's first argument, behind reshapes."""
    inner = node.next_functions[0][0]
    while inner is not None and inner.name() in RESHAPES and len(inner.next_functions) == 1:
        inner = inner.next_functions[0][0]
    return inner


def _dim(node: Any) -> int:
    """Return a dimension, counted from the last one where the result's shape is known."""
    dim, shape = int(node._saved_dim), node._saved_result.shape
    signed = dim - 2**64 if dim >= 2**63 else dim
    return signed - len(shape) if signed >= 0 else signed
