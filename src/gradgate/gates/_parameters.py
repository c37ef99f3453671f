"""Hooks on the gradients of parameters, including frozen ones, and a check of the modules that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError


def on_gradient(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Change every gradient that a parameter receives before it is accumulated.

    torch takes hooks only on tensors that require gradient. A frozen parameter gets the hook too, because it may be
    unfrozen later.
    """
    required = parameter.requires_grad
    handle: RemovableHandle = parameter.requires_grad_().register_hook(change)
    parameter.requires_grad_(required)
    return handle


def check_modules(given: Sequence[Any], call: str) -> None:
    """Raise OptionError unless modules are given; ``call`` is a correct call, for the message."""
    if not given or not all(isinstance(each, nn.Module) for each in given):
        found = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise OptionError(f"{call.partition('(')[0]}: got {found}. Pass modules: {call}.")
