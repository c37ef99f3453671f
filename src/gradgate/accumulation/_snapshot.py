"""A copy of what an optimizer step changes, to put back if it fails; and a cheap look at what it touched."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.torch_compat import tensor_version


def versions(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> dict[int, int]:
    """Return the version counter of every tensor that a step may change: in-place writes raise it."""
    tensors = (*parameters, *_state_tensors(optimizers))
    return {id(tensor): tensor_version.use(tensor) for tensor in tensors}


def _state_tensors(optimizers: Sequence[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            if isinstance(state, dict):
                yield from (value for value in state.values() if isinstance(value, Tensor))


class Snapshot:
    """Parameters, optimizer state and group settings as they stand now.

    Costs as much memory as they take. :meth:`restore` writes into the same tensors, bit for bit, and
    removes state that was added since.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
        self._parameters = [(parameter, parameter.detach().clone()) for parameter in parameters]
        self._states = [
            (one, {key: _copied(value) for key, value in one.state.items()}) for one in optimizers
        ]
        self._groups = [
            (group, {key: _copied(value) for key, value in group.items() if key != "params"})
            for one in optimizers
            for group in one.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for parameter, copied in self._parameters:
            parameter.copy_(copied)
        for optimizer, states in self._states:
            for key in [key for key in optimizer.state if key not in states]:
                del optimizer.state[key]
            for key, state in states.items():
                optimizer.state[key] = _put_back(optimizer.state.get(key), state)
        for group, settings in self._groups:
            group.update(settings)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied(item) for item in value)
    return copy.copy(value)


def _put_back(current: Any, saved: Any) -> Any:
    """Return ``saved``, in the tensors, dicts and lists of ``current`` where they still fit."""
    if isinstance(saved, Tensor) and isinstance(current, Tensor) and saved.shape == current.shape:
        return current.copy_(saved)
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in [key for key in current if key not in saved]:
            del current[key]
        for key, item in saved.items():
            current[key] = _put_back(current.get(key), item)
        return current
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        current[:] = [_put_back(now, item) for now, item in zip(current, saved, strict=True)]
        return current
    return saved
