"""Sums the gradients of 16-bit parameters in float32.

Adding 64 bfloat16 gradients in bfloat16 has an error of 8e-3 of the largest gradient. Autograd can keep the
sum wide (``Tensor.grad_dtype``), and torch's optimizers can take a wide gradient for a narrow parameter
if their state is wide, too.
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

from gradgate.torch_compat import is_dtensor

_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Wide:
    """A parameter whose gradients are summed in a wider dtype, with that dtype and the usual one."""

    parameter: Tensor
    dtype: torch.dtype
    usual: torch.dtype | None


def sum_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype in which a parameter's gradients are summed."""
    narrow = parameter.dtype in _NARROW and not is_dtensor(parameter)  # FSDP adds shards in its own dtype
    return torch.float32 if narrow else parameter.dtype


def widen(parameters: Iterable[Tensor], wide: list[Wide]) -> None:
    """Make autograd add the gradients of 16-bit parameters in float32.

    ``wide`` receives an entry for each widened parameter, before its ``.grad_dtype`` is set. A ``.grad`` of another
    dtype is dropped, so the caller must save it first.
    """
    for parameter in parameters:
        wanted = sum_dtype(parameter)
        if parameter.dtype == wanted:
            continue
        wide.append(Wide(parameter, wanted, parameter.grad_dtype))
        if parameter.grad_dtype != wanted:
            parameter.grad = None  # torch refuses to change `grad_dtype` while there is a gradient
            parameter.grad_dtype = wanted


def narrow(wide: Iterable[Wide]) -> None:
    """Undo :func:`widen`. Gradients of widened parameters are dropped."""
    for widened in wide:
        if widened.parameter.grad_dtype != widened.usual:
            widened.parameter.grad = None
            widened.parameter.grad_dtype = widened.usual


def round_gradients(wide: Iterable[Wide]) -> None:
    """Round each sum once to its parameter's dtype, for an optimizer that cannot take a wide gradient."""
    for widened in wide:
        parameter, gradient = widened.parameter, widened.parameter.grad
        narrow([widened])  # always: the next window would otherwise mistake the wide dtype for the usual one
        if gradient is not None:
            parameter.grad = gradient.to(parameter.dtype)


def takes_wide_gradients(optimizer: Optimizer) -> bool:
    """Return whether an optimizer can use a gradient that is wider than its parameter.

    torch's own optimizers can if their state is wide, except for fused kernels, which need a single dtype.
    Optimizers of other libraries are not tried: a step that fails halfway cannot be undone.
    """
    ours = type(optimizer).__module__.startswith("torch.optim")
    return ours and not any(group.get("fused") for group in optimizer.param_groups)


def widen_state(optimizer: Optimizer, wide: Iterable[Wide]) -> None:
    """Convert narrow state (from a plain loop, or loaded) to the dtype of the sums. Rounds nothing."""
    for widened in wide:
        state = optimizer.state.get(widened.parameter, {})
        for key, value in state.items():
            if _has_entries(value, widened.parameter) and value.dtype != widened.dtype:
                state[key] = value.to(widened.dtype)


def keep_loaded_state_wide(optimizer: Optimizer) -> list[RemovableHandle]:
    """Make ``optimizer.load_state_dict`` keep moments in the dtype of the sums. Return the hooks' handles.

    torch rounds loaded state to the parameter's dtype, which would make a resumed run differ from an uninterrupted
    one. Registers two hooks on the optimizer if it can take wide gradients, otherwise none.
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
                same = getattr(value, "dtype", None) == sum_dtype(parameter)
                if (same or parameter.dtype in _NARROW) and _has_entries(value, parameter):
                    loaded.state[parameter][name] = value.to(parameter.device, copy=True)

    return [
        optimizer.register_load_state_dict_pre_hook(lambda _, state: loading.append(state)),
        optimizer.register_load_state_dict_post_hook(put_back),
    ]


def has_wide_state(optimizers: Iterable[Optimizer]) -> bool:
    """Return whether any optimizer keeps the state of a parameter in a wider dtype."""
    return any(
        _has_entries(value, parameter) and value.dtype.itemsize > parameter.dtype.itemsize
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, Tensor)
        for value in state.values()
    )


def _has_entries(value: Any, parameter: Tensor) -> bool:
    """Return whether a state value holds entries of the parameter, rather than a step count."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return floating and (value.shape == parameter.shape or value.dim() > 0)


class WideState(TorchFunctionMode):
    """While active, makes optimizers create the state of narrow parameters in the wide dtype.

    ``Adam`` creates its moments with ``zeros_like(parameter)`` and then refuses a gradient of another dtype
    (torch 2.13). In this mode, the state of a parameter takes the dtype of its gradient.
    """

    _CREATED_LIKE = (torch.zeros_like, torch.full_like, torch.empty_like, torch.ones_like)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._CREATED_LIKE and args and args[0].is_leaf and args[0].grad is not None:
            kwargs.setdefault("dtype", args[0].grad.dtype)
        return func(*args, **kwargs)
