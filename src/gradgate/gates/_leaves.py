"""Hooks on the gradient of parameters, frozen ones too."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle


def on_gradient(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Have every gradient that a parameter receives changed before it is added up.

    torch wants a tensor that requires gradient; what is frozen now may be unfrozen later.
    """
    required = parameter.requires_grad
    handle: RemovableHandle = parameter.requires_grad_().register_hook(change)
    parameter.requires_grad_(required)
    return handle
