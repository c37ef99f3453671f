"""The parameters that optimizers own, and how messages name them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation._modules import LiveModules
from gradgate.errors import OptionError


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


def name_of(parameter: Tensor, optimizers: Iterable[Optimizer]) -> str:
    """Name a parameter for a message: by its path in a live module, else by its place."""
    for one in optimizers:
        for index, group in enumerate(one.param_groups):
            for place, candidate in enumerate(group["params"]):
                if candidate is parameter:
                    return _label(one, index, group, place, parameter)
    return f"a tensor of shape {list(parameter.shape)}"


def _label(optimizer: Optimizer, index: int, group: dict[str, Any], place: int, parameter: Tensor) -> str:
    names = group.get("param_names")
    path = names[place] if names is not None else LiveModules().parameter_name(parameter)
    if path:
        return f"'{path}'"
    return f"{place} of group {index} ({type(optimizer).__name__}, shape {list(parameter.shape)})"


def named_some(parameters: Sequence[Tensor], optimizers: Iterable[Optimizer], most: int = 3) -> str:
    """List a few parameters by name, and say how many more there are."""
    optimizers = tuple(optimizers)
    names = ", ".join(name_of(parameter, optimizers) for parameter in parameters[:most])
    rest = len(parameters) - most
    return f"{names} and {rest} more" if rest > 0 else names
