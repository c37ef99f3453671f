"""Sums the gradients of 16-bit parameters in a wider dtype, with one loss scale per window.

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
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from gradgate.accumulation._settings import owned_parameters
from gradgate.autograd_graph import Graph
from gradgate.errors import OptionError, UpdateError
from gradgate.torch_compat import is_dtensor

_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Wide:
    """A parameter whose gradients are summed in a wider dtype, with that dtype and the usual one."""

    parameter: Tensor
    dtype: torch.dtype
    usual: torch.dtype | None


def sum_dtype(parameter: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which a parameter's gradients are summed; ``dtype`` is the requested dtype."""
    if not parameter.is_floating_point() or is_dtensor(parameter):  # FSDP adds shards in its own dtype
        return parameter.dtype
    return dtype or (torch.float32 if parameter.dtype in _NARROW else parameter.dtype)


def widen(parameters: Iterable[Tensor], dtype: torch.dtype | None, wide: list[Wide]) -> None:
    """Make autograd add in ``dtype``; None means float32 for 16-bit parameters and no change elsewhere.

    ``wide`` receives an entry for each widened parameter, before its ``.grad_dtype`` is set. A ``.grad`` of another
    dtype is dropped, so the caller must save it first.
    """
    for parameter in parameters:
        if dtype not in (None, parameter.dtype) and is_dtensor(parameter):
            raise OptionError(
                f"update: accumulate_dtype={dtype} does not work under fully_shard, which sums gradients in its "
                f"own dtype, here {parameter.dtype}. Leave accumulate_dtype out. For float32 sums, shard float32 "
                "parameters with MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)."
            )
        wanted = sum_dtype(parameter, dtype)
        if parameter.dtype == wanted:
            continue
        wide.append(Wide(parameter, wanted, parameter.grad_dtype))
        if parameter.grad_dtype != wanted:
            parameter.grad = None  # torch refuses to change `grad_dtype` while there is a gradient
            parameter.grad_dtype = wanted


def narrow(wide: Iterable[Wide]) -> None:
    """Undo :func:`widen`. Gradients of widened parameters are dropped."""
    for each in wide:
        if each.parameter.grad_dtype != each.usual:
            each.parameter.grad = None
            each.parameter.grad_dtype = each.usual


def round_gradients(wide: Iterable[Wide]) -> None:
    """Round each sum once to its parameter's dtype, for an optimizer that cannot take a wide gradient."""
    for each in wide:
        gradient = each.parameter.grad
        narrow([each])  # always: the next window would otherwise mistake the wide dtype for the usual one
        if gradient is not None:
            each.parameter.grad = gradient.to(each.parameter.dtype)


def takes_wide_gradients(optimizer: Optimizer) -> bool:
    """Return whether an optimizer can use a gradient that is wider than its parameter.

    torch's own optimizers can if their state is wide, except for fused kernels, which need a single dtype.
    Optimizers of other libraries are not tried: a step that fails halfway cannot be undone.
    """
    ours = type(optimizer).__module__.startswith("torch.optim")
    return ours and not any(group.get("fused") for group in optimizer.param_groups)


def widen_state(optimizer: Optimizer, wide: Iterable[Wide]) -> None:
    """Convert narrow state (from a plain loop, or loaded) to the dtype of the sums. Rounds nothing."""
    for each in wide:
        state = optimizer.state.get(each.parameter, {})
        for key, value in state.items():
            if _has_entries(value, each.parameter) and value.dtype != each.dtype:
                state[key] = value.to(each.dtype)


def keep_loaded_state_wide(optimizer: Optimizer, dtype: torch.dtype | None) -> list[RemovableHandle]:
    """Make ``optimizer.load_state_dict`` keep moments in the dtype of the sums. Return the hooks' handles.

    torch rounds loaded state to the parameter's dtype, which would make a resumed run differ from an uninterrupted
    one. Registers two hooks on the optimizer if it can take wide gradients, otherwise none. ``dtype`` is the dtype
    that the user requested.
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
                same = getattr(value, "dtype", None) == sum_dtype(parameter, dtype)
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


class LossScale:
    """Keeps the GradScaler scale that a window began with, so that all gradients in its sum have the same scale."""

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._scale: Tensor | None = None
        self._begun = False
        self._resumed: float | None = None
        self._unscaled = False
        self._factor: Tensor | None = None
        self._judged: set[Optimizer] = set()

    def look_at(self, loss: Tensor) -> None:
        """Record the last factor of a loss, to compare it with the loss scale later. Does not synchronize."""
        node: Any = loss.grad_fn
        if node is not None and node.name() == "MulBackward0":
            self._factor = node._saved_other

    def refuse_clips(self, loss: Tensor) -> None:
        """Raise UpdateError if a graph holds a gate whose limit would apply to the scaled gradient."""
        if any(node.name() == "_ClippedBackward" for node in Graph(loss).nodes):
            raise UpdateError(
                "backward: the graph holds gg.clip_gradient. With a GradScaler, its limit would apply to the "
                "gradient times the loss scale. Clip the whole gradient: Accumulator(..., clip_norm=1.0); or use "
                "bfloat16, which needs no scaler; or clip in a hook of your own, with the limit times "
                "scaler.get_scale()."
            )

    def resume(self, scale: float | None) -> None:
        """Use the scale of a loaded window."""
        self._resumed = scale
        self._scale = None if scale is None else torch.tensor(scale)

    def apply(self, seed: Tensor) -> Tensor:
        """Return a backward seed times the window's scale. Does not synchronize."""
        # Needed even if a scale was resumed: a new scaler creates its tensors when it first scales.
        now = self._scaler.scale(torch.ones((), device=seed.device)) if not self._begun else None
        if not self._begun and self._resumed is not None:
            self._scale = torch.full_like(seed, self._resumed, dtype=torch.float32).reshape(())
        self._begun = True
        if self._scale is None:
            self._scale = now
        # In float32 at least: the scale itself, 65536, overflows float16.
        wide = seed.to(torch.promote_types(seed.dtype, torch.float32))
        return seed if self._scale is None else (wide * self._scale.to(seed.device)).to(seed.dtype)

    def value(self) -> float | None:
        """Return the scale as a number, or None before the first backward. Synchronizes with the device."""
        return None if self._scale is None else float(self._scale)

    def unscale(self, optimizers: Iterable[Optimizer], device: torch.device) -> None:
        """Divide ``.grad`` by the scale; the scaler records whether a gradient overflowed."""
        if not self._begun:
            self._scaler.scale(torch.ones((), device=device))  # initializes a new scaler
        now = self._scaler.get_scale()
        if self.value() is not None and now != self.value():
            raise UpdateError(
                f"update: the scaler's scale changed from {self.value()} to {now} while this window was open, "
                "so its gradients would be divided by the wrong scale. Give each accumulator its own "
                "GradScaler, and do not call scaler.update() yourself."
            )
        factor = self._factor
        if factor is not None and factor.numel() == 1 and float(factor) == now != 1:
            raise UpdateError(
                f"update: the loss was already multiplied by the loss scale {now}, and the update would multiply "
                "it again. Pass the unscaled loss: update.backward(loss), without scaler.scale(...)."
            )
        self._unscaled = True
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)
            if any(parameter.grad is not None for parameter in owned_parameters([optimizer])):
                self._judged.add(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Step an optimizer through the scaler, unless it has no gradients, which the scaler rejects."""
        if optimizer in self._judged:
            self._scaler.step(optimizer)
        else:
            optimizer.step()

    def overflowed(self) -> None:
        """Let the scaler lower its scale after a window that was skipped."""
        self._scaler.update()
        self._unscaled = False

    def roll_back(self) -> None:
        """Reset the scaler, so that it can unscale again; its scale does not change."""
        if self._unscaled:
            self._scaler.update(new_scale=self.value())
        self._unscaled = False
