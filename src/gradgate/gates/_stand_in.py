"""Steps of optimizers that see only some entries of a parameter.

An optimizer moves every entry that it is given, also where the gradient is zero: by momentum, weight decay, Adam's
averages. So it is not given the others. For the time of a step a stand-in takes the optimizer's place, whose groups
hold the chosen entries as parameters of their own; afterwards they are written back. The optimizer's own groups are
never changed, so a step that raises leaves nothing to repair, and its state is as large as the chosen entries.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from gradgate.errors import OptionError
from gradgate.torch_compat import uncompiled


class Chosen(Protocol):
    """Some entries of a parameter."""

    def take(self, x: Tensor) -> Tensor:
        """Return these entries of a tensor that is shaped as the parameter."""

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write them back."""


_chosen: Any = WeakTensorKeyDictionary()  # parameter: the entries that optimizers may move
_handle: RemovableHandle | None = None
# Optimizers that have stepped through a stand-in, with the hook on each.
_met: weakref.WeakKeyDictionary[Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()


def choose(parameter: Tensor, chosen: Chosen) -> None:
    """Give optimizers nothing but these entries of a parameter from now on."""
    global _handle  # noqa: PLW0603
    _chosen[parameter] = chosen
    if _handle is None:
        _handle = register_optimizer_step_pre_hook(_before)


def is_chosen(parameter: Tensor) -> bool:
    """Say whether only some entries of a parameter are given to optimizers."""
    return parameter in _chosen


@torch.no_grad()
def give_back(parameter: Tensor) -> None:
    """Give optimizers the whole parameter again; state of the other entries begins anew."""
    chosen = _chosen.pop(parameter)
    entries = chosen.take(parameter)
    for optimizer in list(_met):
        state = optimizer.state.get(parameter, {})
        numbers = [value for value in state.values() if isinstance(value, Tensor) and value.dim()]
        if all(value.shape == parameter.shape for value in numbers):
            continue
        if any(value.shape != entries.shape for value in numbers):
            optimizer.state.pop(parameter, None)  # made of the entries in another way: it begins anew
            continue
        group = next(one for one in optimizer.param_groups if any(p is parameter for p in one["params"]))
        starts = {"step_size": group.get("lr", 0.0), "sum": group.get("initial_accumulator_value", 0.0)}
        for key, value in state.items():
            if _is_likeness(value, entries):
                state[key] = torch.full_like(parameter, float(starts.get(key, 0.0)), dtype=value.dtype)
                chosen.put(state[key], value)


class _StandIn:
    """What a step of an optimizer is run on in its place."""

    def __init__(self, optimizer: Optimizer, entries: dict[Tensor, Tensor]) -> None:
        self.optimizer = optimizer
        self._entries = entries  # parameter: its chosen entries, a parameter of their own
        self.acting = object.__new__(type(optimizer))
        self.acting.__dict__.update(optimizer.__dict__, stand_in=self)
        self.acting.param_groups = [
            {**group, "params": [entries.get(one, one) for one in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.acting.state = copy.copy(optimizer.state)
        for parameter, part in entries.items():
            state = self.acting.state.pop(parameter, None)
            if state is not None:
                _check_fits(state, parameter, part)
                self.acting.state[part] = {
                    key: _chosen[parameter].take(value) if _is_likeness(value, parameter) else value
                    for key, value in state.items()
                }
        self.take_gradients()

    def take_gradients(self) -> None:
        for parameter, part in self._entries.items():
            gradient = parameter.grad
            part.grad = None
            if gradient is not None:
                part.grad_dtype = parameter.grad_dtype
                part.grad = _chosen[parameter].take(gradient)

    @torch.no_grad()
    def write_back(self) -> None:
        for parameter, part in self._entries.items():
            _chosen[parameter].put(parameter, part)

    def closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Let the user's closure see what the step has written so far, and the step its gradients."""

        def called() -> Any:
            self.write_back()
            result = closure()
            self.take_gradients()
            return result

        return called

    def finish(self) -> None:
        """Take over what the step has changed."""
        self.write_back()
        parameters = {part: parameter for parameter, part in self._entries.items()}
        for key, value in self.acting.state.items():
            self.optimizer.state[parameters.get(key, key) if isinstance(key, Tensor) else key] = value
        for group, acting in zip(self.optimizer.param_groups, self.acting.param_groups, strict=True):
            group.update({key: value for key, value in acting.items() if key != "params"})
        kept = {"param_groups", "state", "stand_in"}
        self.optimizer.__dict__.update({k: v for k, v in self.acting.__dict__.items() if k not in kept})


@uncompiled
def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """See to it that the stand-in takes the place after all other hooks, which see the optimizer itself."""
    del args, kwargs
    if not _chosen_of(optimizer):
        return
    if optimizer not in _met:
        _met[optimizer] = optimizer.register_step_pre_hook(_take_the_place)
        after = optimizer.register_step_post_hook(_after)
        # First of all, so that others see what was stepped.
        _hooks_with(after).move_to_end(after.id, last=False)
    _hooks_with(_met[optimizer]).move_to_end(_met[optimizer].id)


def _hooks_with(handle: RemovableHandle) -> Any:
    return handle.hooks_dict_ref()


def _chosen_of(optimizer: Optimizer) -> list[Tensor]:
    ids = {id(parameter): parameter for parameter in _chosen}
    mine = [ids[id(one)] for group in optimizer.param_groups for one in group["params"] if id(one) in ids]
    inner = [one for one in vars(optimizer).values() if isinstance(one, Optimizer) and one is not optimizer]
    # An optimizer that hands on to another does not step these itself.
    handed_on = {id(one) for other in inner for group in other.param_groups for one in group["params"]}
    return [one for one in mine if id(one) not in handed_on]


@uncompiled
def _take_the_place(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put a stand-in in the optimizer's place. torch hands hooks all arguments, ``self`` among them."""
    mine = _chosen_of(optimizer)
    if mine:
        _check_lists(optimizer, mine)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not any(one.grad is not None or closure is not None for one in mine):
        return None
    entries: dict[Tensor, Tensor] = {one: torch.nn.Parameter(_chosen[one].take(one.detach())) for one in mine}
    stand_in = _StandIn(optimizer, entries)
    if closure is not None:
        closure = stand_in.closure(closure)
        args = (optimizer, closure, *args[2:]) if len(args) > 1 else args
        kwargs = kwargs if len(args) > 1 else {**kwargs, "closure": closure}
    return (stand_in.acting, *args[1:]), kwargs


@uncompiled
def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    del kwargs
    if args[0] is not optimizer:
        args[0].__dict__.pop("stand_in").finish()


def _check_lists(optimizer: Optimizer, parameters: list[Tensor]) -> None:
    ids = {id(parameter) for parameter in parameters}
    for name, value in vars(optimizer).items():
        if isinstance(value, list) and any(id(one) in ids for one in value):
            raise OptionError(
                f"train_rows, train_mask: {type(optimizer).__name__} keeps parameters in a list of its own, "
                f"{name}, beside its groups, and would step entries that are not chosen. Take an optimizer that "
                "goes by its groups, as Adam does."
            )


def _check_fits(state: dict[str, Any], parameter: Tensor, entries: Tensor) -> None:
    """Raise OptionError for state that is neither of the whole parameter nor of these entries."""
    for key, value in state.items():
        if (
            not isinstance(value, Tensor)
            or not value.dim()
            or value.shape in (parameter.shape, entries.shape)
        ):
            continue
        other_rows = value.shape[1:] == parameter.shape[1:]
        of_the_whole = value.shape[0] == parameter.shape[0] != entries.shape[0]
        if other_rows or of_the_whole:
            raise OptionError(
                f"train_rows, train_mask: the optimizer's {key} has shape {list(value.shape)}, and the entries "
                f"that are chosen {list(entries.shape)} of {list(parameter.shape)}. Choose those that it was saved "
                "with, or choose before its first step; or drop it: del optimizer.state[parameter]."
            )


def _is_likeness(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
