"""The `.grad` slots of the owned parameters over one window: taken, filled, and put back if need be."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradgate.accumulation._clearing import Decay, Leftovers
from gradgate.accumulation._precision import Wide, narrow, widen
from gradgate.accumulation._settings import Settings


class Slots:
    """Remembers what stood in ``.grad`` when a window began.

    Args:
        parameters: the owned parameters.
        settings: of the accumulator. Zeros that ``clear="zero"`` left stay and are added to; decayed
            gradients stand aside until the window's own sum has been divided.

    Raises:
        GradientError: a gradient stands there that is not a leftover of this accumulator.
    """

    def __init__(self, parameters: Sequence[Tensor], leftovers: Leftovers, settings: Settings) -> None:
        leftovers.check(parameters, settings)
        self.parameters = parameters
        self._settings = settings
        self._leftovers = leftovers
        self.before = [parameter.grad for parameter in parameters]
        self.wide: list[Wide] = []

    def open(self) -> None:
        """Make the slots ready for a window's sum."""
        if isinstance(self._settings.clear, Decay):
            for parameter in self.parameters:
                parameter.grad = None
        self.wide = widen(self.parameters, self._settings.accumulate_dtype)
        if self._settings.clear == "zero":
            for parameter, zeros in zip(self.parameters, self.before, strict=True):
                if (
                    zeros is not None and parameter.grad is None
                ):  # dropped with its type: it is stepped on all the same
                    parameter.grad = zeros.to(parameter.grad_dtype)

    @property
    def carried(self) -> list[Tensor | None] | None:
        """The decayed gradients that are to be added to the mean, or None where nothing decays."""
        decays = isinstance(self._settings.clear, Decay) and any(g is not None for g in self.before)
        return self.before if decays else None

    def roll_back(self) -> None:
        """Put everything back as it was before the window."""
        for parameter in self.parameters:
            parameter.grad = None
        narrow(self.wide)
        for parameter, gradient in zip(self.parameters, self.before, strict=True):
            if gradient is not None and self._settings.clear == "zero":
                gradient.zero_()  # the window added to it in place
            parameter.grad = gradient
        self._leftovers.remember(self.parameters)

    def close(self) -> None:
        """End the window after a step: what stands in ``.grad`` now was left there on purpose."""
        if self._settings.clear == "none":
            narrow(self.wide)
        self._leftovers.remember(self.parameters)
