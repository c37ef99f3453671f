"""Everything that an update may change, written down so that two moments can be compared bit for bit."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass
class Standing:
    """Parameters, ``.grad`` and the states of all that moves, at one moment."""

    parameters: list[Tensor]
    gradients: list[Tensor | None]
    identities: list[int]
    dtypes: list[Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    scaler: dict[str, Any]


def standing(optimizer: Optimizer, scheduler: Any = None, scaler: Any = None) -> Standing:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return Standing(
        [parameter.detach().clone() for parameter in parameters],
        [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters],
        [id(parameter.grad) for parameter in parameters],
        [parameter.grad_dtype for parameter in parameters],
        copy.deepcopy(optimizer.state_dict()),
        {} if scheduler is None else copy.deepcopy(scheduler.state_dict()),
        {} if scaler is None else copy.deepcopy(scaler.state_dict()),
    )


def differences(a: Standing, b: Standing, *, identities: bool = True) -> list[str]:
    """Name what is not the same, bit for bit. ``identities=False`` takes equal gradients for the same."""
    names = list(vars(a))
    if not identities:
        names.remove("identities")
    return [name for name in names if not same(getattr(a, name), getattr(b, name))]


def same(a: Any, b: Any) -> bool:
    if hasattr(a, "to_local"):  # a shard: ranks may have stopped at different places
        return hasattr(b, "to_local") and same(a.to_local(), b.to_local())
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a.to_dense(), b.to_dense())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
