"""Detects changes that other code makes to a trainer's running sum of gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gradgate.errors import GradientError
from gradgate.torch_compat import tensor_version


class HeldGradient:
    """The gradient of one parameter as a backward pass left it.

    Clearing, clipping and other backward passes change all gradients, so one parameter is enough. The smallest
    parameter is used, because masks of single rows, which do no harm, act on large parameters.
    """

    def __init__(self) -> None:
        self._parameter: Tensor | None = None
        self._gradient: Tensor | None = None
        self._version = 0
        self._complete = False

    def remember(self, parameters: Iterable[Tensor], *, complete: bool = False) -> None:
        """Record a gradient after a backward pass, or after the division that completes its window."""
        self._complete = complete
        if self._parameter is None or self._parameter.grad is None:
            held = (parameter for parameter in parameters if parameter.grad is not None)
            self._parameter = min(held, key=Tensor.numel, default=None)
        self._gradient = None if self._parameter is None else self._parameter.grad
        self._version = 0 if self._gradient is None else tensor_version.use(self._gradient)

    def check(self, library: str, *, within: bool) -> None:
        """Raise GradientError if the gradient was changed within a window, or not cleared after the last window."""
        if self._parameter is None or self._gradient is None:
            return
        same = self._parameter.grad is self._gradient
        if self._complete:
            # A clip may have changed the gradient since. Reading it synchronizes, but zero_grad() usually removes
            # it.
            if same and bool(self._gradient.norm()):
                raise GradientError(
                    f"{library}: the gradients of the last window were not cleared, so the next window would be "
                    "added to them. Call optimizer.zero_grad() after each step. In Lightning, an optimizer with a "
                    "closure (LBFGS) needs accumulate_grad_batches=1."
                )
        elif within and not (same and tensor_version.use(self._gradient) == self._version):
            raise GradientError(
                f"{library}: gradients were changed between two micro-batches of a window: cleared, clipped, or "
                "filled by another backward call. Clip with the trainer's own option, or when gradients are "
                "complete (`if accelerator.sync_gradients:`); add all terms to the loss that the trainer receives; "
                "and use torch.autograd.grad for other gradients."
            )
