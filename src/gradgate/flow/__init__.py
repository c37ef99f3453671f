"""Gates: where gradient is stopped, scaled, reversed, masked or clipped; and modules that stay still."""

from gradgate.flow._frozen import Frozen, frozen
from gradgate.flow._gates import (
    clip_gradient,
    mask_gradient,
    reverse_gradient,
    scale_gradient,
    stop_gradient,
)

__all__ = [
    "Frozen",
    "clip_gradient",
    "frozen",
    "mask_gradient",
    "reverse_gradient",
    "scale_gradient",
    "stop_gradient",
]
