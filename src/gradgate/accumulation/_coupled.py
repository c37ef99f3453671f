"""Losses that compare the items of a micro-batch with one another: no split of a batch gives its gradient."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from gradgate.autograd_graph import NotUnderstoodError, SamplesMixedError, check_items
from gradgate.errors import CoupledLossWarning

_TERMS = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "NegBackward0")


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
