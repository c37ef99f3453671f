"""The loss scale of one window, where a GradScaler is used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradgate.accumulation._parameters import owned_parameters
from gradgate.errors import UpdateError


class LossScale:
    """Holds on to the scale that a window began with, so that all its terms carry the same one.

    Args:
        scaler: the scaler, or None for a scale of 1.
    """

    def __init__(self, scaler: GradScaler | None) -> None:
        self._scaler = scaler
        self._scale: Tensor | None = None
        self._begun = False
        self._resumed: float | None = None
        self._unscaled = False
        self._factor: Tensor | None = None
        self._judged: set[Optimizer] = set()

    def look_at(self, loss: Tensor) -> None:
        """Keep the last factor of a loss, to see at the end whether it was the scale. Nothing waits here."""
        node: Any = loss.grad_fn
        if self._scaler is not None and node is not None and node.name() == "MulBackward0":
            self._factor = node._saved_other

    def resume(self, scale: float | None) -> None:
        """Take over the scale of a saved window that is being continued."""
        self._resumed = scale
        self._scale = None if scale is None else torch.tensor(scale)

    def apply(self, seed: Tensor) -> Tensor:
        """Multiply a backward seed by the window's scale. Nothing waits for the device."""
        if self._scaler is None:
            return seed
        # Asked also where a scale was resumed: a new scaler makes its own tensors when it first scales.
        now = self._scaler.scale(torch.ones((), device=seed.device)) if not self._begun else None
        if not self._begun and self._resumed is not None:
            self._scale = torch.full_like(seed, self._resumed, dtype=torch.float32).reshape(())
        self._begun = True
        if self._scale is None:
            self._scale = now
        # In float32 at least: the scale itself, 65536, is more than float16 holds.
        wide = seed.to(torch.promote_types(seed.dtype, torch.float32))
        return seed if self._scale is None else (wide * self._scale.to(seed.device)).to(seed.dtype)

    def value(self) -> float | None:
        """Return the scale as a number, or None before the first backward. Waits for the device."""
        return None if self._scale is None else float(self._scale)

    def unscale(self, optimizers: Iterable[Optimizer], device: torch.device) -> None:
        """Divide ``.grad`` by the scale; the scaler notes whether it overflowed."""
        if self._scaler is None:
            return
        if not self._begun:
            self._scaler.scale(torch.ones((), device=device))  # a resumed window may have nothing more to add
        now = self._scaler.get_scale()
        if self.value() is not None and now != self.value():
            raise UpdateError(
                f"update: the scaler's scale moved from {self.value()} to {now} while this window was open, so "
                "its gradients carry another scale than the one they would be divided by. Give each "
                "accumulator its own GradScaler, and leave scaler.update() to it."
            )
        factor = self._factor
        if factor is not None and factor.numel() == 1 and float(factor) == now != 1:
            raise UpdateError(
                f"update: the loss was already multiplied by the loss scale {now}, and the update does so itself. "
                "Pass the plain loss: update.backward(loss), without scaler.scale(...)."
            )
        self._unscaled = True
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)
            if any(parameter.grad is not None for parameter in owned_parameters([optimizer])):
                self._judged.add(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Step an optimizer: by the scaler, which refuses one in whose gradients it found nothing to judge."""
        if self._scaler is not None and optimizer in self._judged:
            self._scaler.step(optimizer)
        else:
            optimizer.step()

    def overflowed(self) -> None:
        """Let the scaler lower its scale after a window that was skipped."""
        if self._scaler is not None:
            self._scaler.update()
        self._unscaled = False

    def roll_back(self) -> None:
        """Make the scaler forget that it unscaled; its scale stays what it was."""
        if self._unscaled and self._scaler is not None:
            self._scaler.update(new_scale=self.value())
        self._unscaled = False
