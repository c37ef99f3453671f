"""Checks of the graph of a loss: for hidden parameters, and for items that are compared with one another."""

from __future__ import annotations

import warnings

from torch import Tensor

from gradgate.autograd_graph import (
    REENTRANT_CHECKPOINT,
    Graph,
    NotUnderstoodError,
    SamplesMixedError,
    check_items,
    hidden_parameter,
    walk,
)
from gradgate.errors import CoupledLossWarning, GraphError

# Operations between a loss and its terms, such as the weighted terms of both directions.
_TERMS = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "NegBackward0")


def refuse_hidden_parameters(loss: Tensor) -> None:
    """Raise GraphError if a graph hides parameters from autograd, which would silently skip them."""
    hidden = hidden_parameter(Graph(loss))
    if hidden is None:
        return
    if hidden.node == REENTRANT_CHECKPOINT:
        raise GraphError(
            "backward: the graph holds a reentrant checkpoint, which hides its parameters from autograd: "
            "they would get no gradient. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    raise GraphError(
        f"backward: the graph holds {hidden.node}, which runs its own backward pass through {hidden.module} "
        f"and hides its parameters ('{hidden.path}') from autograd: they would get no gradient, or a gradient "
        "outside the update. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) instead."
    )


def warn_if_coupled(loss: Tensor) -> None:
    """Warn about a loss over products or distances between all samples of a micro-batch, such as InfoNCE.

    It is recognized if only elementwise operations, softmax and changes of shape lie between these and the loss.
    """
    for node, following in walk(loss.grad_fn, beyond=_TERMS):
        if not following or node.name() in _TERMS:
            continue
        try:
            check_items(node)
        except SamplesMixedError as mixed:
            warnings.warn(
                f"backward: this loss compares the items of a micro-batch with one another: {mixed}. A split "
                "leaves out the pairs that it separates, so no split gives the gradient of the whole batch. "
                "Compute the loss over the whole window: update.backward_coupled(encode, micro_batches, loss_fn).",
                CoupledLossWarning,
                stacklevel=5,
            )
            return
        except (NotUnderstoodError, AttributeError, ValueError):
            continue
