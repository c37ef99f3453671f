"""The number with which the running backward pass began.

A weighted backward pass begins with ``count / unit``, times the loss scale, rather than with 1. A gate whose effect
is not linear in the gradient, such as :func:`gradgate.clip_gradient`, multiplies its limit by this number. Its
effect is then that of a plain ``loss.backward()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class BackwardWeight:
    """The seed of the running backward pass: a scalar tensor; None stands for 1.

    Autograd runs gates on threads of its own, so this is no context variable.
    """

    current: Tensor | None = None

    @contextmanager
    def of(self, seed: Tensor) -> Iterator[None]:
        """Publish the seed of the backward pass in the block."""
        before, self.current = self.current, seed
        try:
            yield
        finally:
            self.current = before


backward_weight = BackwardWeight()
