"""The parameters that optimizers own, and how messages name them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.errors import OptionError

if TYPE_CHECKING:
    from gradgate.accumulation._settings import Settings


def as_optimizers(optimizer: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """Return one optimizer or several as a tuple; refuse what cannot be stepped once per window."""
    optimizers = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
    if not optimizers:
        raise OptionError("Accumulator: no optimizer was given, so it owns no parameters. Pass at least one.")
    for one in optimizers:
        if not hasattr(one, "param_groups") or not callable(getattr(one, "step", None)):
            raise OptionError(
                f"Accumulator: {type(one).__name__} is no optimizer (it has no param_groups and step). "
                "Pass a torch.optim optimizer, or a sequence of them."
            )
        if _needs_closure(one):
            raise OptionError(
                f"Accumulator: {type(one).__name__} evaluates the loss several times within one step, by a "
                "closure; a window is run once. Use it without gradgate, with a closure that runs the whole batch "
                "(or all micro-batches, each weighed by its items), or take an optimizer that steps once."
            )
    return optimizers


def _needs_closure(optimizer: Optimizer) -> bool:
    if isinstance(optimizer, torch.optim.LBFGS):
        return True
    # `Optimizer.__init__` wraps the class's step; the wrapper keeps the signature.
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def owned_parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return every parameter that the optimizers step, in their order.

    Read anew for each window, so that groups which are added later belong to the next window.
    """
    return [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]


def name_of(parameter: Tensor, settings: Settings) -> str:
    """Name a parameter for a message: by its path in ``model=``, else by its place in the optimizer."""
    for optimizer in settings.optimizers:
        for index, group in enumerate(optimizer.param_groups):
            for place, candidate in enumerate(group["params"]):
                if candidate is parameter:
                    return _label(optimizer, index, group, place, parameter, settings)
    return f"a tensor of shape {list(parameter.shape)}"


def _label(
    optimizer: Optimizer, index: int, group: dict[str, Any], place: int, parameter: Tensor, settings: Settings
) -> str:
    names = group.get("param_names")
    path = names[place] if names is not None else settings.models.parameter_name(parameter)
    if path:
        return f"'{path}'"
    return f"{place} of group {index} ({type(optimizer).__name__}, shape {list(parameter.shape)})"


def named_some(parameters: Sequence[Tensor], settings: Settings, most: int = 3) -> str:
    """List a few parameters by name, and say how many more there are."""
    names = ", ".join(name_of(parameter, settings) for parameter in parameters[:most])
    rest = len(parameters) - most
    return f"{names} and {rest} more" if rest > 0 else names
