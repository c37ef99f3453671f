"""Checks of what stands in the graph of a loss: hidden parameters, and items that are compared with one another."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import (
    REENTRANT_CHECKPOINT,
    Graph,
    NotUnderstoodError,
    SamplesMixedError,
    check_items,
    hidden_parameter,
)
from gradgate.errors import CoupledLossWarning, GraphError

_TERMS = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "NegBackward0")


def refuse_hidden_parameters(loss: Tensor) -> None:
    """Raise GraphError if a graph hides parameters from autograd, which would silently skip them."""
    hidden = hidden_parameter(Graph(loss))
    if hidden is None:
        return
    if hidden.node == REENTRANT_CHECKPOINT:
        raise GraphError(
            "backward: the graph holds a reentrant checkpoint, which hides its parameters from autograd: "
            "they would get no gradient. Write torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    raise GraphError(
        f"backward: the graph holds {hidden.node}, which keeps {hidden.module} for a backward pass of its own and "
        f"hides its parameters ('{hidden.path}') from autograd: they would get no gradient, or one past their "
        "owner. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) in its place."
    )


def warn_if_coupled(loss: Tensor) -> None:
    """Warn of a loss over products or distances between all samples of a micro-batch, such as InfoNCE.

    It is recognized if only elementwise operations, softmax and changes of shape lie between these and the loss.
    """
    todo: list[Any] = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or not node.next_functions:
            continue
        if node.name() in _TERMS:  # perhaps of two directions, or weighted
            todo += [child for child, _ in node.next_functions]
            continue
        try:
            check_items(node)
        except SamplesMixedError as mixed:
            warnings.warn(
                f"backward: this loss compares the items of a micro-batch with one another: {mixed}. Pairs that "
                "a split separates are left out, so no split gives the gradient of the whole batch. Make "
                "micro-batches as large as memory allows, or take the loss over the whole window, in two passes.",
                CoupledLossWarning,
                stacklevel=5,
            )
            return
        except (NotUnderstoodError, AttributeError, ValueError):
            continue
