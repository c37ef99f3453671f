"""What becomes of gradients after a step: dropped, set to zero, or decayed and carried on."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import Tensor

from gradgate.accumulation._parameters import named_some
from gradgate.errors import GradientError, OptionError
from gradgate.torch_compat import foreach_mul_, foreach_zero_, tensor_version

if TYPE_CHECKING:
    from gradgate.accumulation._settings import Settings


@dataclass(frozen=True)
class Decay:
    """Carry ``factor`` times the last gradient into the next update. Made by :func:`decay`."""

    factor: float


Clear: TypeAlias = Literal["none", "zero"] | Decay


def decay(factor: float) -> Decay:
    """Decay gradients after a step in place of clearing them.

    The next update's gradient is then ``factor`` times the last one, as the optimizer received it, plus
    the new mean. The part that is carried over is not divided again. The effect is that of momentum
    outside the optimizer: a constant gradient ``g`` grows towards ``g / (1 - factor)``.

    Args:
        factor: from 0 (as good as cleared) to below 1 (at 1 gradients would add up for ever).

    Raises:
        OptionError: ``factor`` is not in ``[0, 1)``.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> accumulator = Accumulator(optimizer, clear=decay(0.5))
        >>> for _ in range(3):
        ...     with accumulator.update() as update:
        ...         update.backward(weight.sum(), count=1)
        ...     print(update.grad_norm)
        1.0
        1.5
        1.75
    """
    if not 0 <= factor < 1:
        raise OptionError(
            f"decay: factor is {factor}, it must be at least 0 and below 1, or gradients would grow for ever. "
            "Use clear='none' to drop gradients after a step."
        )
    return Decay(float(factor))


def checked_clear(clear: Clear) -> Clear:
    """Return ``clear`` if it is one of the three, else say what they are."""
    if clear in ("none", "zero") or isinstance(clear, Decay):
        return clear
    raise OptionError(f"Accumulator: clear is {clear!r}; it is 'none', 'zero' or gradgate.decay(factor).")


def clear_gradients(parameters: Sequence[Tensor], clear: Clear) -> None:
    """Do with the gradients of ``parameters`` what ``clear`` says."""
    if clear == "none":
        for parameter in parameters:
            parameter.grad = None
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    if isinstance(clear, Decay):
        foreach_mul_(gradients, clear.factor)
    else:
        foreach_zero_(gradients)


class Leftovers:
    """The gradients that an accumulator itself left in ``.grad``: zeros, or decayed ones.

    Whatever else is found there before a window was put there by somebody else, and adding to it would
    mix two updates. Tensors are told apart by identity and version: also a leftover that was written to
    is somebody else's.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def remember(self, parameters: Sequence[Tensor]) -> None:
        """Take what stands in ``.grad`` now as left by the accumulator."""
        # What stood in a module that is frozen now was set aside, and comes back.
        aside = {id(p): self._known[id(p)] for p in parameters if p.grad is None and id(p) in self._known}
        self._known = aside | {
            id(parameter): (weakref.ref(parameter.grad), tensor_version.use(parameter.grad))
            for parameter in parameters
            if parameter.grad is not None
        }

    def check(self, parameters: Sequence[Tensor], settings: Settings) -> None:
        """Raise GradientError if a gradient stands in ``.grad`` that was not left by the accumulator."""
        strange = [p for p in parameters if p.grad is not None and not self._left(p, p.grad)]
        if strange:
            raise GradientError(
                "update: parameters that already hold a gradient which this accumulator did not make: "
                f"{len(strange)} of {len(parameters)} ({named_some(strange, settings)}). Adding to it "
                "would mix two updates. Call optimizer.zero_grad() before the block, or run that backward "
                "through update.backward(...)."
            )

    def _left(self, parameter: Tensor, gradient: Tensor) -> bool:
        known = self._known.get(id(parameter))
        return known is not None and known[0]() is gradient and known[1] == tensor_version.use(gradient)
