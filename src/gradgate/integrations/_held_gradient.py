"""Detects changes that other code makes to a trainer's running sum of gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gradgate.errors import GradientError
from gradgate.torch_compat import tensor_version


class HeldGradient:
    """The gradient of one parameter as a backward pass left it.

    Clearing, clipping and other backward passes change all gradients, so one parameter is enough. It is the
    smallest one, because masks of single rows, which do no harm, are used on large ones.
    """

    def __init__(self) -> None:
        self._parameter: Tensor | None = None
        self._gradient: Tensor | None = None
        self._version = 0

    def remember(self, parameters: Iterable[Tensor]) -> None:
        """Record a gradient after a backward pass."""
        if self._parameter is None or self._parameter.grad is None:
            held = (parameter for parameter in parameters if parameter.grad is not None)
            self._parameter = min(held, key=Tensor.numel, default=None)
        self._gradient = None if self._parameter is None else self._parameter.grad
        self._version = 0 if self._gradient is None else tensor_version.use(self._gradient)

    def check(self, library: str) -> None:
        """Raise GradientError if the gradient was changed since then."""
        if self.changed:
            raise GradientError(
                f"{library}: gradients were changed between two micro-batches of a window: cleared, clipped, or "
                "filled by another backward call. Clip with the trainer's own option, add all terms to the loss "
                "that the trainer receives, and use torch.autograd.grad for other gradients."
            )

    @property
    def changed(self) -> bool:
        """Whether the gradient was written to, replaced or cleared since then."""
        return self._gradient is not None and not self.unchanged

    @property
    def unchanged(self) -> bool:
        """Whether the parameter still has this gradient, and nothing has written to it."""
        if self._parameter is None or self._gradient is None:
            return False
        same = self._parameter.grad is self._gradient
        return same and tensor_version.use(self._gradient) == self._version
