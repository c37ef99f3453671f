"""Puts hooks on the gradients of parameters that a handle acts on, and detects when those are replaced."""

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


class Holding:
    """Makes an optimizer raise if it steps a parameter that replaced a chosen one. A copied Holding checks nothing.

    ``fully_shard`` and ``load_state_dict(assign=True)`` replace parameters. ``call`` names the function that still
    acts on the old ones, for the message.
    """

    def __init__(self, modules: Iterable[nn.Module], call: str, chosen: Collection[Tensor]) -> None:
        self.call = call
        ids = set(map(id, chosen))
        for module in modules:
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in ids:
                    _held.setdefault(module, []).append((self, name, id(parameter)))
        _check_steps()

    def __reduce__(self) -> tuple[Any, ...]:
        return Holding, ((), "", ())

    def release(self) -> None:
        """Stop checking these parameters."""
        for held in _held.values():
            held[:] = [entry for entry in held if entry[0] is not self]


# By module: who holds a parameter, its name and its id. A module outlives the parameters that it replaces.
_held: weakref.WeakKeyDictionary[nn.Module, list[tuple[Holding, str, int]]] = weakref.WeakKeyDictionary()


@functools.cache
def _check_steps() -> RemovableHandle:
    return register_optimizer_step_pre_hook(_refuse_replaced)


def _refuse_replaced(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    del args, kwargs
    if torch.compiler.is_compiling():
        return
    for module, held in list(_held.items()):
        parameters = parameters_of.use(module)
        for holding, name, old in held:
            if name in parameters and id(parameters[name]) == old:
                continue
            now = set(map(id, parameters_now(module, name)))
            if old in now or not any(
                id(p) in now for group in optimizer.param_groups for p in group["params"]
            ):
                continue
            call = holding.call
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


def on_gradient(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Change every gradient that a parameter receives, before it is accumulated. Return a handle.

    torch takes hooks only on tensors that require gradient. A frozen parameter gets the hook too, because it may be
    unfrozen later.
    """
    required = parameter.requires_grad
    handle: RemovableHandle = parameter.requires_grad_().register_hook(change)
    parameter.requires_grad_(required)
    return handle


def check_modules(given: Sequence[Any], call: str) -> None:
    """Raise OptionError unless modules are given; ``call`` is a correct call, for the message."""
    if not given or not all(isinstance(item, nn.Module) for item in given):
        kinds = ", ".join(type(item).__name__ for item in given) or "nothing"
        raise OptionError(f"{call.partition('(')[0]}: got {kinds}. Pass modules: {call}.")
