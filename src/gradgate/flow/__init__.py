"""Gates: where gradient is stopped, scaled, reversed, masked or clipped. No forward value changes."""

from gradgate.flow._gates import (
    clip_gradient,
    mask_gradient,
    reverse_gradient,
    scale_gradient,
    stop_gradient,
)

__all__ = ["clip_gradient", "mask_gradient", "reverse_gradient", "scale_gradient", "stop_gradient"]
