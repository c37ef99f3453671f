"""Puts hooks on the gradients of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError


class GradientHooks:
    """Changes every gradient that some parameters receive, before it is accumulated. A copy does nothing."""

    def __init__(self, change: Callable[[Tensor], Tensor], parameters: Iterable[Tensor]) -> None:
        self._hooks: list[RemovableHandle] = []
        for parameter in parameters:
            # torch takes hooks only on tensors that require gradient. A frozen parameter may be unfrozen later.
            required = parameter.requires_grad
            self._hooks.append(parameter.requires_grad_().register_hook(change))
            parameter.requires_grad_(required)

    def __reduce__(self) -> tuple[Any, ...]:
        return GradientHooks, (abs, ())

    def remove(self) -> None:
        """Stop changing gradients."""
        for hook in self._hooks:
            hook.remove()


def parameters_now(module: nn.Module, name: str) -> list[Tensor]:
    """Return the parameters that a module now has under this name; other code may have replaced the original."""
    if is_parametrized(module, name):
        return list(module.get_submodule(f"parametrizations.{name}").parameters(recurse=False))
    parameter = getattr(module, name, None)
    return [parameter] if isinstance(parameter, nn.Parameter) else []


def check_modules(given: Sequence[Any], call: str) -> None:
    """Raise OptionError unless modules are given; ``call`` is a correct call, for the message."""
    if not given or not all(isinstance(item, nn.Module) for item in given):
        kinds = ", ".join(type(item).__name__ for item in given) or "nothing"
        raise OptionError(f"{call.partition('(')[0]}: got {kinds}. Pass modules: {call}.")
