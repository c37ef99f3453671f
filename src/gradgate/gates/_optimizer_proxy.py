"""Lets optimizers see only some entries of a parameter.

An optimizer also moves entries whose gradient is zero: by momentum, weight decay or Adam's averages. It must
therefore not see entries that are not chosen. During a step, a proxy replaces the optimizer. The proxy's groups
hold the chosen entries as separate parameters, which are written back afterwards. The optimizer's own groups never
change, so a step that raises leaves nothing to repair. The optimizer's state is only as large as the chosen
entries.
"""

from __future__ import annotations

import copy
import functools
import weakref
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from gradgate.errors import OptionError
from gradgate.ownership import chosen_entries
from gradgate.torch_compat import move_hook, sparse_tensor, uncompiled


class Entries:
    """Some entries of a parameter.

    Args:
        index: the ids of rows, ascending; or a bool mask of the parameter's shape.
    """

    def __init__(self, index: Tensor) -> None:
        self._index = index
        self._are_rows = index.dtype != torch.bool

    def __str__(self) -> str:
        return f"{len(self._index)} rows" if self._are_rows else f"{int(self._index.sum())} entries"

    def checksum(self) -> int:
        """Return a number that tells different choices of entries apart."""
        places = self._index if self._are_rows else self._index.flatten().nonzero()[:, 0]
        return zlib.crc32(str(places.tolist()).encode())

    def take(self, x: Tensor) -> Tensor:
        """Return these entries of a tensor that has the parameter's shape."""
        if self._are_rows:
            return x.index_select(0, self._on(x))  # of a sparse tensor, too
        return (x.to_dense() if x.is_sparse else x)[self._on(x)]

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write the values of these entries to a tensor."""
        x[self._on(x)] = values

    def masked(self, gradient: Tensor) -> Tensor:
        """Return the gradient with zeros at all other entries, in the same layout, as torch requires of hooks."""
        index = self._on(gradient)
        if not gradient.is_sparse:
            if self._are_rows:
                return torch.zeros_like(gradient).index_copy(0, index, gradient.index_select(0, index))
            return torch.where(index, gradient, 0)
        gradient = gradient.coalesce()
        indices, values = gradient.indices(), gradient.values()
        if self._are_rows:
            kept = torch.isin(indices[0], index)
            indices, values = indices[:, kept], values[kept]
        else:
            values = torch.where(index[indices[0]], values, 0)
        return sparse_tensor(indices, values, gradient.shape)

    def _on(self, x: Tensor) -> Tensor:
        self._index = self._index.to(x.device)  # the model may have moved since
        return self._index


_entries: Any = WeakTensorKeyDictionary()  # by parameter: the entries that optimizers may move
# The hook that swaps in the proxy, for each optimizer that has stepped with one.
_hooks: weakref.WeakKeyDictionary[Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()


def restrict(parameter: Tensor, entries: Entries) -> None:
    """Let optimizers see only these entries of a parameter from now on."""
    _entries[parameter], chosen_entries[parameter] = entries, entries.checksum()
    _order_hooks()


@functools.cache
def _order_hooks() -> RemovableHandle:
    return register_optimizer_step_pre_hook(_before_hooks)


def has_entries(parameter: Tensor) -> bool:
    """Return whether optimizers see only some entries of a parameter."""
    return parameter in _entries


@torch.no_grad()
def unrestrict(parameter: Tensor) -> None:
    """Let optimizers see the whole parameter again; state for the other entries starts from scratch."""
    entries, _ = _entries.pop(parameter), chosen_entries.pop(parameter)
    values = entries.take(parameter)
    for optimizer in list(_hooks):
        state = optimizer.state.get(parameter, {})
        tensors = [value for value in state.values() if isinstance(value, Tensor) and value.dim()]
        if all(value.shape == parameter.shape for value in tensors):
            continue
        if any(value.shape != values.shape for value in tensors):
            optimizer.state.pop(parameter, None)  # has another shape, so it cannot be expanded
            continue
        group = next(
            group for group in optimizer.param_groups if any(p is parameter for p in group["params"])
        )
        starts = {"step_size": group.get("lr", 0.0), "sum": group.get("initial_accumulator_value", 0.0)}
        for key, value in state.items():
            if _has_shape_of(value, values):
                state[key] = torch.full_like(parameter, float(starts.get(key, 0.0)), dtype=value.dtype)
                entries.put(state[key], value)


class _Proxy:
    """Runs one step of an optimizer on a copy that has the chosen entries as parameters."""

    def __init__(self, optimizer: Optimizer, values: dict[Tensor, Tensor]) -> None:
        self.optimizer = optimizer
        self._values = values  # for each parameter, its chosen entries as a separate parameter
        self.copy = object.__new__(type(optimizer))
        self.copy.__dict__.update(optimizer.__dict__, proxy=self)
        self.copy.param_groups = [
            {**group, "params": [values.get(parameter, parameter) for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.copy.state = copy.copy(optimizer.state)
        for parameter, value in values.items():
            state = self.copy.state.pop(parameter, None)
            if state is not None:
                _check_fits(state, parameter, value)
                self.copy.state[value] = {
                    key: _entries[parameter].take(held) if _has_shape_of(held, parameter) else held
                    for key, held in state.items()
                }
        self.take_gradients()

    def take_gradients(self) -> None:
        for parameter, value in self._values.items():
            value.grad = None
            if parameter.grad is not None:
                value.grad_dtype = parameter.grad_dtype
                value.grad = _entries[parameter].take(parameter.grad)

    @torch.no_grad()
    def write_back(self) -> None:
        for parameter, value in self._values.items():
            _entries[parameter].put(parameter, value)

    def closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that writes the entries back, runs the user's closure, and takes the new gradients."""

        def called() -> Any:
            self.write_back()
            result = closure()
            self.take_gradients()
            return result

        return called

    def finish(self) -> None:
        """Copy the changes of the step to the optimizer."""
        self.write_back()
        parameters = {value: parameter for parameter, value in self._values.items()}
        for key, value in self.copy.state.items():
            self.optimizer.state[parameters.get(key, key) if isinstance(key, Tensor) else key] = value
        for group, changed in zip(self.optimizer.param_groups, self.copy.param_groups, strict=True):
            group.update({key: value for key, value in changed.items() if key != "params"})
        kept = {"param_groups", "state", "proxy"}
        self.optimizer.__dict__.update({k: v for k, v in self.copy.__dict__.items() if k not in kept})


@uncompiled
def _before_hooks(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let the hook that swaps in the proxy run last, so that all other hooks see the optimizer itself."""
    del args, kwargs
    if not _restricted_in(optimizer):
        return
    if optimizer not in _hooks:
        _hooks[optimizer] = optimizer.register_step_pre_hook(_replace)
        after = optimizer.register_step_post_hook(_finish)
        # Moved to the front, so that other hooks see the result of the step.
        move_hook(after, last=False)
    move_hook(_hooks[optimizer], last=True)


def _restricted_in(optimizer: Optimizer) -> list[Tensor]:
    ids = {id(parameter): parameter for parameter in _entries}
    found = [ids[id(each)] for group in optimizer.param_groups for each in group["params"] if id(each) in ids]
    inner = [
        each for each in vars(optimizer).values() if isinstance(each, Optimizer) and each is not optimizer
    ]
    if inner and any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        return []  # the inner optimizer of each rank updates its own part of all parameters
    # Parameters that the inner optimizer of a wrapper updates.
    delegated = {id(each) for other in inner for group in other.param_groups for each in group["params"]}
    return [parameter for parameter in found if id(parameter) not in delegated]


@uncompiled
def _replace(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of the optimizer's step with a proxy in place of ``self``; None to keep them."""
    parameters = _restricted_in(optimizer)
    if parameters:
        _check_lists(optimizer, parameters)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not any(parameter.grad is not None or closure is not None for parameter in parameters):
        return None
    proxy = _Proxy(
        optimizer, {each: torch.nn.Parameter(_entries[each].take(each.detach())) for each in parameters}
    )
    if closure is not None:
        closure = proxy.closure(closure)
        args = (optimizer, closure, *args[2:]) if len(args) > 1 else args
        kwargs = kwargs if len(args) > 1 else {**kwargs, "closure": closure}
    return (proxy.copy, *args[1:]), kwargs


@uncompiled
def _finish(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    del kwargs
    if args[0] is not optimizer:
        args[0].__dict__.pop("proxy").finish()


def _check_lists(optimizer: Optimizer, parameters: list[Tensor]) -> None:
    ids = {id(parameter) for parameter in parameters}
    for name, value in vars(optimizer).items():
        if isinstance(value, list) and any(id(each) in ids for each in value):
            raise OptionError(
                f"train_rows, train_mask: {type(optimizer).__name__} keeps parameters in a separate list, "
                f"{name}, and would step entries that are not chosen. Use an optimizer that reads its groups, as "
                "Adam does."
            )


def _check_fits(state: dict[str, Any], parameter: Tensor, entries: Tensor) -> None:
    """Raise OptionError for state that fits neither the whole parameter nor these entries."""
    shapes = {key: value.shape for key, value in state.items() if isinstance(value, Tensor) and value.dim()}
    others = {key: shape for key, shape in shapes.items() if shape not in (parameter.shape, entries.shape)}
    if not others or _broadcast(others.values()) == entries.shape:  # Adafactor keeps a row and a column
        return
    for key, shape in others.items():
        of_other_rows = shape[1:] == parameter.shape[1:]
        of_all_rows = shape[0] == parameter.shape[0] != entries.shape[0]
        if of_other_rows or of_all_rows:
            raise OptionError(
                f"train_rows, train_mask: the optimizer's {key} has shape {list(shape)}, but the chosen entries "
                f"have shape {list(entries.shape)}, and the parameter has shape {list(parameter.shape)}. Choose "
                "the same entries as when the state was saved, choose them before the first step, or drop the "
                "state: del optimizer.state[parameter]."
            )


def _broadcast(shapes: Iterable[torch.Size]) -> torch.Size | None:
    try:
        found: torch.Size = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None
    return found


def _has_shape_of(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == tensor.shape
