"""Puts hooks on the gradients of parameters, and detects when those are replaced."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError
from gradgate.torch_compat import parameters_of


class GradientHooks:
    """Changes every gradient that some parameters receive, before it is accumulated. A copy does nothing.

    ``fully_shard`` and ``load_state_dict(assign=True)`` replace parameters, which the hooks do not follow. An
    optimizer then raises before it steps those that have replaced the parameters of ``modules``. ``call`` names the
    function that set the hooks, for the message.
    """

    def __init__(
        self,
        call: str,
        change: Callable[[Tensor], Tensor],
        parameters: Collection[Tensor],
        modules: Iterable[nn.Module],
    ) -> None:
        self.call = call
        self._hooks: list[RemovableHandle] = []
        for parameter in parameters:
            # torch takes hooks only on tensors that require gradient. A frozen parameter may be unfrozen later.
            required = parameter.requires_grad
            self._hooks.append(parameter.requires_grad_().register_hook(change))
            parameter.requires_grad_(required)
        ids = set(map(id, parameters))
        for module in modules:
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in ids:
                    _held.setdefault(module, []).append((self, name, id(parameter)))
        _check_steps()

    def __reduce__(self) -> tuple[Any, ...]:
        return GradientHooks, ("", abs, (), ())

    def remove(self) -> None:
        """Stop changing gradients."""
        for hook in self._hooks:
            hook.remove()
        for held in _held.values():
            held[:] = [entry for entry in held if entry[0] is not self]


# By module: the hooks on a parameter, its name and its id. A module outlives the parameters that it replaces.
_held: weakref.WeakKeyDictionary[nn.Module, list[tuple[GradientHooks, str, int]]] = (
    weakref.WeakKeyDictionary()
)


@functools.cache
def _check_steps() -> RemovableHandle:
    return register_optimizer_step_pre_hook(_refuse_replaced)


def _refuse_replaced(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    del args, kwargs
    if torch.compiler.is_compiling():
        return
    for module, held in list(_held.items()):
        parameters = parameters_of.use(module)
        for hooks, name, old in held:
            if name in parameters and id(parameters[name]) == old:
                continue
            now = set(map(id, parameters_now(module, name)))
            if old in now or not any(
                id(p) in now for group in optimizer.param_groups for p in group["params"]
            ):
                continue
            call = hooks.call
            raise OptionError(
                f"{call}: the {name} of {type(module).__name__} was replaced after the call, so the call no longer "
                "affects it: the model was sharded, parametrized, or loaded with assign=True. Call remove() on "
                f"the handle, then call {call} again."
            )


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
