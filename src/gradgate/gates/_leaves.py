"""Hooks on the gradients of parameters, including frozen ones."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle


def on_gradient(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Change every gradient that a parameter receives before it is accumulated.

    torch takes hooks only on tensors that require gradient, and what is frozen now may be unfrozen later.
    """
    required = parameter.requires_grad
    handle: RemovableHandle = parameter.requires_grad_().register_hook(change)
    parameter.requires_grad_(required)
    return handle
