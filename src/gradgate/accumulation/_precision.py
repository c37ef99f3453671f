"""Sums in a wider type than the parameters: 16-bit parameters, 32-bit gradient sums.

Adding 64 bfloat16 gradients in bfloat16 is off by 8e-3 of the largest gradient. Autograd can keep the
sum wide (``Tensor.grad_dtype``), and torch's optimizers can take a wide gradient for a narrow parameter
once their own state is wide as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from gradgate.accumulation._gradients import is_part

_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Wide:
    """A parameter whose gradient sum is kept in another type than usual, and the usual one."""

    parameter: Tensor
    dtype: torch.dtype
    usual: torch.dtype | None


def sum_dtype(parameter: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which a parameter's gradients are added up; ``dtype`` is what was asked for."""
    if not parameter.is_floating_point() or is_part(parameter):  # a part adds up in its engine's type
        return parameter.dtype
    return dtype or (torch.float32 if parameter.dtype in _NARROW else parameter.dtype)


def widen(parameters: Iterable[Tensor], dtype: torch.dtype | None) -> list[Wide]:
    """Make autograd add in ``dtype``; None means float32 for 16-bit parameters and no change elsewhere.

    Side effects: ``.grad_dtype`` of the parameters that are returned. A ``.grad`` of another type is
    dropped; the caller keeps what is still needed.
    """
    wide = []
    for parameter in parameters:
        wanted = sum_dtype(parameter, dtype)
        if parameter.dtype == wanted:
            continue
        wide.append(Wide(parameter, wanted, parameter.grad_dtype))
        if parameter.grad_dtype != wanted:
            parameter.grad = None  # torch refuses to change the type under a gradient
            parameter.grad_dtype = wanted
    return wide


def narrow(wide: Iterable[Wide]) -> None:
    """Undo :func:`widen`. A gradient that does not fit the usual type is dropped."""
    for one in wide:
        if one.parameter.grad_dtype != one.usual:
            one.parameter.grad = None
            one.parameter.grad_dtype = one.usual


def round_gradients(wide: Iterable[Wide]) -> None:
    """Round each sum once to its parameter's own type, for an optimizer that cannot take a wide one."""
    for one in wide:
        gradient = one.parameter.grad
        narrow(
            [one]
        )  # also where no loss reached it: the next window takes the type that it finds for the usual one
        if gradient is not None:
            one.parameter.grad = gradient.to(one.parameter.dtype)


def takes_wide_gradients(optimizer: Optimizer) -> bool:
    """Say whether an optimizer computes with a gradient that is wider than its parameter.

    torch's own do, given a wide state; their fused kernels want one type throughout. Other people's
    optimizers are not put to the test: a step that fails half-way cannot be undone.
    """
    ours = type(optimizer).__module__.startswith("torch.optim")
    return ours and not any(group.get("fused") for group in optimizer.param_groups)


def widen_state(optimizer: Optimizer, wide: Iterable[Wide]) -> None:
    """Give state that was made narrow (by a plain loop, or loaded) the type of the sums. Rounds nothing."""
    for one in wide:
        state = optimizer.state.get(one.parameter, {})
        for key, value in state.items():
            if _is_likeness(value, one.parameter) and value.dtype != one.dtype:
                state[key] = value.to(one.dtype)


def keep_loaded_state_wide(optimizer: Optimizer, dtype: torch.dtype | None) -> list[RemovableHandle]:
    """Make ``optimizer.load_state_dict`` keep moments in the type of the sums; ``dtype`` is what was asked for.

    torch rounds loaded state to the parameter's own type, so that a resumed run would differ from one that
    was not stopped. Registers two hooks on the optimizer, none where it cannot take wide gradients.
    """
    if not takes_wide_gradients(optimizer):
        return []
    loading: list[dict[str, Any]] = []

    def put_back(loaded: Optimizer) -> None:
        saved = loading.pop()
        keys = [key for group in saved["param_groups"] for key in group["params"]]
        current = [parameter for group in loaded.param_groups for parameter in group["params"]]
        for key, parameter in zip(keys, current, strict=False):
            for name, value in saved["state"].get(key, {}).items():
                kept = parameter.dtype in _NARROW or getattr(value, "dtype", None) == sum_dtype(
                    parameter, dtype
                )
                if kept and _is_likeness(value, parameter):
                    loaded.state[parameter][name] = value.to(parameter.device, copy=True)

    return [
        optimizer.register_load_state_dict_pre_hook(lambda _, state: loading.append(state)),
        optimizer.register_load_state_dict_post_hook(put_back),
    ]


def has_wide_state(optimizers: Iterable[Optimizer]) -> bool:
    """Say whether any optimizer keeps state of a parameter in a wider type."""
    return any(
        _is_likeness(value, parameter) and value.dtype.itemsize > parameter.dtype.itemsize
        for one in optimizers
        for parameter, state in one.state.items()
        if isinstance(parameter, Tensor)
        for value in state.values()
    )


def _is_likeness(value: Any, parameter: Tensor) -> bool:
    """Say whether a value of the state is made of entries like the parameter's, and no count of steps."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return floating and (value.shape == parameter.shape or value.dim() > 0)


class WideState(TorchFunctionMode):
    """While active, optimizer state that is made in the likeness of a narrow parameter is made wide.

    ``Adam`` makes its moments by ``zeros_like(parameter)`` and then refuses a gradient of another type
    (torch 2.13). The state's type is the one thing that has to change: to that of the parameter's gradient.
    """

    _LIKENESSES = (torch.zeros_like, torch.full_like, torch.empty_like, torch.ones_like)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._LIKENESSES and args and args[0].is_leaf and args[0].grad is not None:
            kwargs.setdefault("dtype", args[0].grad.dtype)
        return func(*args, **kwargs)
