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

_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Wide:
    """A parameter whose gradient sum is kept in another type than usual, and the usual one."""

    parameter: Tensor
    dtype: torch.dtype
    usual: torch.dtype | None


def widen(parameters: Iterable[Tensor], dtype: torch.dtype | None) -> list[Wide]:
    """Make autograd add in ``dtype``; None means float32 for 16-bit parameters and no change elsewhere.

    Side effects: ``.grad_dtype`` of the parameters that are returned. A ``.grad`` of another type is
    dropped; the caller keeps what is still needed.
    """
    wide = []
    for parameter in parameters:
        if dtype is None and parameter.dtype not in _NARROW:
            continue
        wanted = dtype or torch.float32
        if parameter.dtype == wanted or not parameter.is_floating_point():
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
        if gradient is not None:
            narrow([one])
            one.parameter.grad = gradient.to(one.parameter.dtype)


def takes_wide_gradients(optimizer: Optimizer) -> bool:
    """Say whether an optimizer computes with a gradient that is wider than its parameter.

    torch's own do, given a wide state; their fused kernels want one type throughout. Other people's
    optimizers are not put to the test: a step that fails half-way cannot be undone.
    """
    ours = type(optimizer).__module__.startswith("torch.optim")
    return ours and not any(group.get("fused") for group in optimizer.param_groups)


class WideState(TorchFunctionMode):
    """While active, optimizer state that is made in the likeness of a narrow parameter is made wide.

    ``Adam`` makes its moments by ``zeros_like(parameter)`` and then refuses a gradient of another type
    (torch 2.13). The state's type is the one thing that has to change.
    """

    _LIKENESSES = (torch.zeros_like, torch.full_like, torch.empty_like, torch.ones_like)

    def __init__(self, wide: Iterable[Wide]) -> None:
        super().__init__()
        self._dtypes = {id(one.parameter): one.dtype for one in wide}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._LIKENESSES and args and id(args[0]) in self._dtypes:
            kwargs.setdefault("dtype", self._dtypes[id(args[0])])
        return func(*args, **kwargs)
