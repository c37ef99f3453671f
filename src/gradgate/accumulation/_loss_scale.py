"""One loss scale for each window, so that all gradients in its sum have the same scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradgate.accumulation._settings import owned_parameters
from gradgate.autograd_graph import ops
from gradgate.errors import UpdateError


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
        if node is not None and node.name() == ops.MUL:
            self._factor = node._saved_other

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
